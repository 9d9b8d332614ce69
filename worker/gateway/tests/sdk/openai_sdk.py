"""OpenAI's own SDK, given a base address and a token. Prints what it saw as JSON."""

import json
import os

import openai

BASE, BROKE, TOKEN = os.environ["GATEWAY"], os.environ["BROKE"], os.environ["TOKEN"]
IMAGE = "data:image/png;base64," + os.environ["IMAGE"]
client = openai.OpenAI(base_url=BASE + "/openai/v1", api_key=TOKEN)
broke = openai.OpenAI(base_url=BROKE + "/openai/v1", api_key=TOKEN)
model, seen = "model-a", {}
ask = [{"role": "user", "content": "What do you see?"}]
function = {"name": "click", "description": "Clicks.", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}

# 1 to 4: chat completions.
answer = client.chat.completions.create(model=model, messages=ask)
seen["plain"] = [answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens]
chunks = list(client.chat.completions.create(model=model, messages=ask, stream=True))
seen["stream"] = ["".join(c.choices[0].delta.content or "" for c in chunks), [c.usage for c in chunks if c.usage]]
chunks = list(client.chat.completions.create(model=model, messages=ask, stream=True, stream_options={"include_usage": True}))
seen["stream_usage"] = chunks[-1].usage.completion_tokens
picture = [{"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]}]
answer = client.chat.completions.create(model=model, messages=picture, tools=[{"type": "function", "function": function}])
seen["tools"] = answer.choices[0].message.tool_calls[0].function.name

# 5 to 7: responses.
answer = client.responses.create(model=model, input="What do you see?", tools=[{"type": "function", "strict": False, **function}])
seen["responses"] = [answer.output_text, answer.output[1].name, answer.usage.input_tokens_details.cached_tokens]
text, last = "", None
for event in client.responses.create(model=model, input="What do you see?", stream=True):
    text += event.delta if event.type == "response.output_text.delta" else ""
    last = event
seen["responses_stream"] = [text, last.type, last.response.usage.output_tokens]
item = {"role": "user", "content": [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": IMAGE, "detail": "auto"}]}
seen["responses_image"] = client.responses.create(model=model, input=[item]).status

# 8: fails twice in passing; the gateway tries again, and the SDK does not see it.
seen["retried"] = client.chat.completions.create(model=model, messages=ask).choices[0].finish_reason


def refused(name, call):
    try:
        call()
    except openai.APIStatusError as error:
        seen[name] = [type(error).__name__, error.status_code, error.code, str(error)]


refused("budget", lambda: broke.chat.completions.create(model=model, messages=ask))
refused("budget_stream", lambda: list(broke.responses.create(model=model, input="x", stream=True)))
refused("state", lambda: client.responses.create(model=model, input="x", previous_response_id="resp_1"))
refused("search", lambda: client.responses.create(model=model, input="x", tools=[{"type": "web_search"}]))
refused("remote_image", lambda: client.responses.create(model=model, input=[{"role": "user", "content": [{"type": "input_image", "image_url": "https://host/i.png", "detail": "auto"}]}]))
refused("token", lambda: client.with_options(api_key="wrong").chat.completions.create(model=model, messages=ask))
seen["models"] = [m.id for m in client.models.list()]
print(json.dumps(seen))
