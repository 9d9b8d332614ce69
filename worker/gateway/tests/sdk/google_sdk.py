"""Google's own SDK, given a base address and a token. Prints what it saw as JSON."""

import base64
import json
import os

from google import genai
from google.genai import errors, types

BASE, BROKE, TOKEN = os.environ["GATEWAY"], os.environ["BROKE"], os.environ["TOKEN"]


def client_at(base, key=TOKEN):
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=base + "/gemini"))


client, broke = client_at(BASE), client_at(BROKE)
model, seen = "model-a", {}

answer = client.models.generate_content(model=model, contents="What do you see?")
usage = answer.usage_metadata
seen["plain"] = [answer.text, usage.cached_content_token_count, usage.thoughts_token_count]
chunks = list(client.models.generate_content_stream(model=model, contents="What do you see?"))
seen["stream"] = ["".join(c.text or "" for c in chunks), chunks[-1].usage_metadata.candidates_token_count]
click = types.FunctionDeclaration(name="click", description="Clicks.", parameters={"type": "OBJECT", "properties": {"x": {"type": "INTEGER"}}})
config = types.GenerateContentConfig(
    system_instruction="Be brief.", max_output_tokens=100, tools=[types.Tool(function_declarations=[click])],
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)
image = types.Part.from_bytes(data=base64.b64decode(os.environ["IMAGE"]), mime_type="image/png")
answer = client.models.generate_content(model=model, contents=["What?", image], config=config)
seen["tools"] = answer.function_calls[0].name
# Fails twice in passing; the gateway tries again, and the SDK does not see it.
seen["retried"] = str(client.models.generate_content(model=model, contents="x").candidates[0].finish_reason)


def refused(name, call):
    try:
        call()
    except errors.APIError as error:
        seen[name] = [type(error).__name__, error.code, error.status, str(error)]


refused("budget", lambda: broke.models.generate_content(model=model, contents="x"))
refused("budget_stream", lambda: list(broke.models.generate_content_stream(model=model, contents="x")))
search = types.GenerateContentConfig(tools=[types.Tool(google_search=types.GoogleSearch())])
refused("search", lambda: client.models.generate_content(model=model, contents="x", config=search))
remote = types.Part.from_uri(file_uri="gs://bucket/i.png", mime_type="image/png")
refused("file", lambda: client.models.generate_content(model=model, contents=[remote]))
cached = types.GenerateContentConfig(cached_content="cachedContents/1")
refused("cached", lambda: client.models.generate_content(model=model, contents="x", config=cached))
wrong = client_at(BASE, "wrong")  # kept: a client that is collected is closed
refused("token", lambda: wrong.models.generate_content(model=model, contents="x"))
print(json.dumps(seen))
