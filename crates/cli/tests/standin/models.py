"""Stands in for the Anthropic Messages API and the OpenAI Responses API. README.md says how it is used."""

import json
import os
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = os.environ["STANDIN_KEY"]
LOG = os.environ["STANDIN_LOG"]
SCRIPT = os.environ["STANDIN_SCRIPT"]
LOG_LOCK = threading.Lock()


def new_id(prefix):
    return prefix + uuid.uuid4().hex[:24]


def blocks(content):
    """A message's content as a list of blocks."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


# What the agents add to prompts by themselves, as texts of their own.
ADDED = ("<system-reminder>", "<environment_context>", "<user_instructions>", "# AGENTS.md", "[Request interrupted")


def is_prompt(text):
    return bool(text.strip()) and not text.lstrip().startswith(ADDED)


def asked_of_anthropic(body):
    """The prompts so far, and how many tools have answered. None: not of the conversation."""
    if not body.get("tools"):
        return None
    prompts, results = [], 0
    for message in body.get("messages", []):
        if message["role"] != "user":
            continue
        for block in blocks(message["content"]):
            if block["type"] == "tool_result":
                results += 1
            elif block["type"] == "text" and is_prompt(block["text"]):
                prompts.append(block["text"])
    return prompts, results


def openai_tools(body):
    """The names of a request's tools, which for newer models come as an item of the input, in namespaces."""
    tools = list(body.get("tools") or [])
    for item in blocks(body.get("input")):
        if item.get("type") == "additional_tools":
            tools += item["tools"]
    for tool in list(tools):
        tools += tool.get("tools", [])
    return {tool.get("name") or tool["type"] for tool in tools}


def asked_of_openai(body):
    if not openai_tools(body):
        return None
    prompts, results = [], 0
    said = body.get("input")
    for item in [{"role": "user", "content": said}] if isinstance(said, str) else said or []:
        if item.get("type", "message").endswith("_call_output"):
            results += 1
        elif item.get("role") == "user":
            prompts += [block["text"] for block in blocks(item["content"]) if is_prompt(block.get("text", ""))]
    return prompts, results


def step_of(asked, earlier):
    """The number of the step that a request takes, and the step. `earlier` tells how often it was taken before."""
    prompts, results = asked
    with open(SCRIPT) as file:
        script = json.load(file)
    if isinstance(script, dict):
        script = next((steps for part, steps in script.items() if prompts and part in prompts[0]), [])
    number = len(prompts) + results - 1
    if not 0 <= number < len(script):
        return number, {"text": f"The script has no step {number}."}
    step = dict(script[number])
    first = step.pop("first", [])
    taken = earlier(number, prompts[:1]) if first else 0
    for once in first:
        taken -= once.get("times", 1)
        if taken < 0:
            return number, once
    return number, step


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def read_body(self):
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def handle_request(self):
        raw = self.read_body()
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw.decode("latin-1")
        path = self.path.split("?")[0]
        api = next((name for name, end in APIS.items() if path.endswith(end) and self.command == "POST"), None)
        asked = None
        if api == "messages":
            asked = asked_of_anthropic(body)
        elif api == "responses":
            asked = asked_of_openai(body)
        entry = {
            "time": time.time(),
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body,
        }
        known = KEY in (self.headers.get("x-api-key"), self.headers.get("authorization", "").removeprefix("Bearer "))
        step = {}
        with LOG_LOCK:
            if known and asked:
                entry["step"], step = step_of(asked, self.times_taken)
                entry["prompt"] = asked[0][:1]
            with open(LOG, "a") as file:
                file.write(json.dumps(entry) + "\n")

        if self.command == "HEAD" or path == "/":
            self.answer(200, {})
        elif not known:
            self.refuse(api, 401)
        elif api is None:
            self.refuse(api, 404)
        elif api == "count_tokens":
            self.answer(200, {"input_tokens": max(1, len(raw) // 4)})
        else:
            if asked is None:
                step = {"text": beside(body)}
            time.sleep(step.get("sleep", 0))
            if step.get("drop"):
                self.close_connection = True
            elif "status" in step:
                self.refuse(api, step["status"])
            else:
                self.stream(api, body, step)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = handle_request

    @staticmethod
    def times_taken(number, prompt):
        """From the log, so that a stand-in that was started anew knows it too."""
        if not os.path.exists(LOG):
            return 0
        with open(LOG) as file:
            entries = [json.loads(line) for line in file]
        return sum(entry.get("step") == number and entry.get("prompt") == prompt for entry in entries)

    def answer(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def refuse(self, api, status):
        kind = {
            401: "authentication_error",
            404: "not_found_error",
            429: "rate_limit_error",
            529: "overloaded_error",
        }.get(status, "api_error" if status >= 500 else "invalid_request_error")
        error = {"type": kind, "message": f"the stand-in says {status}"}
        if api == "responses":
            self.answer(status, {"error": error | {"code": "invalid_api_key" if status == 401 else None}})
        else:
            self.answer(status, {"type": "error", "error": error, "request_id": "req_standin"})

    def stream(self, api, body, step):
        make = anthropic_events if api == "messages" else openai_events
        if not body.get("stream"):
            last = None
            for last in make(body, step | {"pause": 0}):
                pass
            return self.answer(200, last[2])
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, event, _ in make(body, step):
            if name == "cut":
                self.close_connection = True
                return
            data = f"event: {name}\ndata: {json.dumps(event)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


APIS = {"count_tokens": "/v1/messages/count_tokens", "messages": "/v1/messages", "responses": "/v1/responses"}


def beside(body):
    """The answer to a request without tools, which is not of the conversation: a title, a summary of a page."""
    return '{"title": "A task"}' if "title" in json.dumps(body.get("system", "")) else "OK"


def pieces_of(step):
    return step.get("slow_text") or ([step["text"]] if "text" in step else [])


def anthropic_events(body, step):
    """Triples: the event's name, the event, and the whole message so far."""
    tool = step.get("tool")
    if "command" in step:
        tool = {"name": "Bash", "input": {"command": step["command"], "description": "Runs a command"}}
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 5,
    } | step.get("usage", {})
    message = {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage | {"output_tokens": 1},
    }
    yield "message_start", {"type": "message_start", "message": message}, message
    index = -1
    if pieces := pieces_of(step):
        index += 1
        start = {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
        yield "content_block_start", start, message
        for piece in pieces:
            delta = {"type": "text_delta", "text": piece}
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}, message
            time.sleep(step.get("pause", 0))
        if step.get("cut"):
            yield "cut", None, message
            return
        yield "content_block_stop", {"type": "content_block_stop", "index": index}, message
        message["content"].append({"type": "text", "text": "".join(pieces)})
    if tool:
        index += 1
        block = {"type": "tool_use", "id": new_id("toolu_"), "name": tool["name"], "input": {}}
        start = {"type": "content_block_start", "index": index, "content_block": block}
        yield "content_block_start", start, message
        delta = {"type": "input_json_delta", "partial_json": json.dumps(tool["input"])}
        yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}, message
        yield "content_block_stop", {"type": "content_block_stop", "index": index}, message
        message["content"].append(block | {"input": tool["input"]})
    message["stop_reason"] = "tool_use" if tool else "end_turn"
    message["usage"] = usage
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}, message
    yield "message_stop", {"type": "message_stop"}, message


def shell_tool(body, command):
    """Codex's shell, which is another tool for each kind of model."""
    names = openai_tools(body)
    if "exec" in names:
        source = f"const done = await tools.exec_command({json.dumps({'cmd': command})});\ntext(done.output);"
        return {"name": "exec", "source": source}
    if "exec_command" in names:
        return {"name": "exec_command", "input": {"cmd": command}}
    if "shell_command" in names:
        return {"name": "shell_command", "input": {"command": command}}
    return {"name": "shell", "input": {"command": ["bash", "-lc", command]}}


def openai_events(body, step):
    tool = step.get("tool")
    if "command" in step:
        tool = shell_tool(body, step["command"])
    usage = {"input_tokens": 10, "cached_tokens": 0, "output_tokens": 5, "reasoning_tokens": 0} | step.get("usage", {})
    response = {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": body["model"],
        "output": [],
        "usage": None,
    }
    number = 0

    def event(kind, **fields):
        nonlocal number
        number += 1
        return kind, {"type": kind, "sequence_number": number - 1} | fields, response

    yield event("response.created", response=response)
    if pieces := pieces_of(step):
        item = {"id": new_id("msg_"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        place = {"output_index": len(response["output"]), "item_id": item["id"], "content_index": 0}
        yield event("response.output_item.added", output_index=place["output_index"], item=item)
        part = {"type": "output_text", "text": "", "annotations": []}
        yield event("response.content_part.added", part=part, **place)
        for piece in pieces:
            yield event("response.output_text.delta", delta=piece, **place)
            time.sleep(step.get("pause", 0))
        if step.get("cut"):
            yield "cut", None, response
            return
        part = part | {"text": "".join(pieces)}
        yield event("response.output_text.done", text=part["text"], **place)
        yield event("response.content_part.done", part=part, **place)
        item = item | {"status": "completed", "content": [part]}
        yield event("response.output_item.done", output_index=place["output_index"], item=item)
        response["output"].append(item)
    if tool:
        # A tool that takes JSON, or one that takes a text.
        kind, key, text = "function_call", "arguments", json.dumps(tool.get("input"))
        delta = "response.function_call_arguments"
        if "source" in tool:
            kind, key, text, delta = "custom_tool_call", "input", tool["source"], "response.custom_tool_call_input"
        item = {
            "id": new_id("fc_" if kind == "function_call" else "ctc_"),
            "type": kind,
            "status": "completed",
            "call_id": new_id("call_"),
            "name": tool["name"],
            key: text,
        }
        place = {"output_index": len(response["output"])}
        yield event("response.output_item.added", item=item | {"status": "in_progress", key: ""}, **place)
        yield event(delta + ".delta", item_id=item["id"], delta=text, **place)
        yield event(delta + ".done", item_id=item["id"], **{key: text}, **place)
        yield event("response.output_item.done", item=item, **place)
        response["output"].append(item)
    response |= {
        "status": "completed",
        "usage": {
            "input_tokens": usage["input_tokens"],
            "input_tokens_details": {"cached_tokens": usage["cached_tokens"]},
            "output_tokens": usage["output_tokens"],
            "output_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
            "total_tokens": usage["input_tokens"] + usage["output_tokens"],
        },
    }
    yield event("response.completed", response=response)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        # That a client goes away is usual.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
