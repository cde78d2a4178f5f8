"""A server that answers for pods as the API of Kubernetes does, or worse. It prints its port."""

import http.server
import json
import ssl
import sys
import time

TOKEN, UID = sys.argv[1:]
PODS = "/api/v1/namespaces/shop/pods/"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.removeprefix(PODS)
        statuses = {"absent": 404, "forbidden": 403, "broken": 500}
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, b"{}")
        if "PartialObjectMetadata" not in self.headers["Accept"]:
            return self.answer(406, b"{}")
        if name in statuses:
            return self.answer(statuses[name], b"{}")
        metadata = {"name": name, "uid": UID, "annotations": {"slackwater.dirty-limit": "64MiB", "team": "a"}}
        if name == "small":
            metadata["annotations"] = {"slackwater.dirty-limit": "4MiB", "slackwater.dontcache": "off"}
        elif name == "wrong":
            metadata["annotations"]["slackwater.dirty-limit"] = "lots"
        elif name == "bare":
            del metadata["annotations"]
        elif name == "successor":
            metadata["uid"] = "another"
        elif name == "huge":
            metadata["annotations"]["note"] = "x" * (8 << 20)
        elif name == "garbage":
            return self.answer(200, b"hello")
        elif name == "moved":
            self.send_response(307)
            self.send_header("Location", PODS + "web-0")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        elif name == "slow":
            time.sleep(60)
        elif name == "slower":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            for _ in range(60):
                self.wfile.write(b" ")
                time.sleep(1)
        self.answer(200, json.dumps({"kind": "PartialObjectMetadata", "metadata": metadata}).encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("server.crt", "server.key")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
