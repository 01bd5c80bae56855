"""A balancer before two web applications before a store: haproxy, Python, redis."""

from ..case import check
from . import PYTHON, Scenario, key_value_stores, web_servers

_NEEDS = {"haproxy": "haproxy", "redis-server": "redis-server", "redis-cli": "redis-tools",
          "curl": "curl", "wrk": "wrk"}

APPLICATION = """
import http.server, socket, sys
class Store:
    def __init__(self):
        self.file = socket.create_connection(("127.0.0.1", 7010)).makefile("rwb")
    def ask(self, *words):
        line = b"*%d\\r\\n" % len(words)
        for word in words:
            line += b"$%d\\r\\n%s\\r\\n" % (len(word), word)
        self.file.write(line)
        self.file.flush()
        head = self.file.readline()
        if head[:1] == b"$":
            size = int(head[1:])
            return None if size < 0 else self.file.read(size + 2)[:-2]
        return head[1:-2]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def setup(self):
        super().setup()
        self.store = Store()
    def answer(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        found = self.store.ask(b"GET", self.path.encode())
        self.answer(404 if found is None else 200, found or b"nothing")
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.store.ask(b"SET", self.path.encode(), body)
        self.answer(200, b"%d" % int(self.store.ask(b"INCR", b"changes")))
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 100
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

_CLIENT = """
import hashlib, http.client, threading
def use(number):
    near = http.client.HTTPConnection("127.0.0.1", 7021, timeout=20)
    for at in range(20):
        body = bytes([97 + at]) * (10 ** (at % 5) * (1 + number))
        near.request("PUT", f"/{number}/{at}", body)
        near.getresponse().read()
        near.request("GET", f"/{number}/{at}")
        answer = near.getresponse()
        found[number] = found.get(number, 0) + (answer.status == 200 and answer.read() == body)
found = {}
threads = [threading.Thread(target=use, args=[at]) for at in range(6)]
[one.start() for one in threads]
[one.join() for one in threads]
near = http.client.HTTPConnection("127.0.0.1", 7021, timeout=20)
near.request("GET", "/none")
answer = near.getresponse()
print(sorted(found.items()), answer.status, answer.read())
"""


def _chain(place):
    """Balancer and store are the server's side, applications and clients the client's: with the
    library on one of them each connection has one end with it."""
    configuration = web_servers.haproxy_configuration(place, [7071, 7072])
    with key_value_stores.served(place), \
            place.serve(7071, PYTHON, "-Bc", APPLICATION, 7071, side=1), \
            place.serve(7072, PYTHON, "-Bc", APPLICATION, 7072, side=1), \
            place.serve(7021, "haproxy", "-db", "-f", configuration):
        seen = [place.python(_CLIENT), key_value_stores.cli(place, 7010, "get", "changes"),
                web_servers.load(place, "http://127.0.0.1:7021/3/1"),
                key_value_stores.cli(place, 7010, "debug", "digest")]
        check("(5, 20)" in seen[0], seen[0])
        return seen


SCENARIOS = [Scenario("chain", _chain, _NEEDS)]
