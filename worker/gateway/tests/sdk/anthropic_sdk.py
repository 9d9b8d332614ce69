"""Anthropic's own SDK, given a base address and a token. Prints what it saw as JSON."""

import json
import os

import anthropic

BASE, BROKE, TOKEN = os.environ["GATEWAY"], os.environ["BROKE"], os.environ["TOKEN"]
client = anthropic.Anthropic(base_url=BASE + "/anthropic", api_key=TOKEN)
broke = anthropic.Anthropic(base_url=BROKE + "/anthropic", api_key=TOKEN)
model, seen = "model-a", {}
ask = [{"role": "user", "content": "What do you see?"}]

answer = client.messages.create(model=model, max_tokens=100, messages=ask)
seen["plain"] = [answer.content[0].text, answer.usage.cache_read_input_tokens]
with client.messages.stream(model=model, max_tokens=100, messages=ask) as stream:
    seen["stream"] = ["".join(stream.text_stream), stream.get_final_message().usage.output_tokens]
image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": os.environ["IMAGE"]}}
cached = {"type": "text", "text": "What?", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
tool = {"name": "click", "description": "Clicks.", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
answer = client.messages.create(model=model, max_tokens=100, system="Be brief.", tools=[tool], messages=[{"role": "user", "content": [image, cached]}])
creation = answer.usage.cache_creation
seen["tools"] = [answer.content[1].name, creation.ephemeral_5m_input_tokens, creation.ephemeral_1h_input_tokens]
computer = {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768}
answer = client.beta.messages.create(model=model, max_tokens=100, tools=[computer], messages=ask, betas=["computer-use-2025-01-24"])
seen["beta"] = answer.stop_reason
# Fails twice in passing; the gateway tries again, and the SDK does not see it.
seen["retried"] = client.messages.create(model=model, max_tokens=100, messages=ask).stop_reason


def refused(name, call):
    try:
        call()
    except anthropic.APIStatusError as error:
        seen[name] = [type(error).__name__, error.status_code, error.body["error"]["type"], str(error)]


def streamed(who):
    with who.messages.stream(model=model, max_tokens=100, messages=ask) as stream:
        stream.get_final_message()


refused("budget", lambda: broke.messages.create(model=model, max_tokens=100, messages=ask))
refused("budget_stream", lambda: streamed(broke))
search = {"type": "web_search_20250305", "name": "web_search"}
refused("search", lambda: client.messages.create(model=model, max_tokens=100, messages=ask, tools=[search]))
document = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
refused("file", lambda: client.messages.create(model=model, max_tokens=100, messages=[{"role": "user", "content": [document]}]))
refused("token", lambda: client.with_options(api_key="wrong").messages.create(model=model, max_tokens=100, messages=ask))
seen["models"] = [m.id for m in client.models.list()]
print(json.dumps(seen))
