"""What Schemathesis must not do to the machine that it runs on, and to itself.

As a program: prints the id of a key of a server. `schemathesis_hooks.py URL KEY`
"""

import json
import os
import sys
import urllib.request
import uuid


def key_id(url, key):
    request = urllib.request.Request(url + "/keys", headers={"Authorization": "Bearer " + key})
    with urllib.request.urlopen(request, timeout=10) as answer:
        keys = json.load(answer)["items"]
    return next(each["id"] for each in keys if key.startswith(each["prefix"]))


if __name__ == "__main__":
    print(key_id(*sys.argv[1:3]))
    sys.exit()

import schemathesis  # noqa: E402


@schemathesis.hook
def before_call(context, case, kwargs):
    # Values of one answer are tried in other calls. A sandbox of `local` has no walls: random commands would run, and
    # random paths be removed, on this machine.
    if isinstance(case.body, dict) and case.body.get("provider") == "local":
        case.body["provider"] = "native"
    # The server must go on: only another run of it is asked to stop.
    if case.path == "/server/stop":
        case.body = {"instance": "another"}
    # All calls after it would be refused.
    parameters = case.path_parameters or {}
    if parameters.get("key") == os.environ["SEAWALL_KEY_ID"]:
        parameters["key"] = str(uuid.uuid4())


@schemathesis.deserializer("text/event-stream")
def events(context, response):
    # The schema of a stream, in the document, is that of what stands in `data:`.
    told = []
    for event in response.content.decode().split("\n\n"):
        lines = [line[5:] for line in event.split("\n") if line.startswith("data:")]
        if lines:
            told.append(json.loads("\n".join(lines)))
    return told
