import os, socket, ssl, sys, threading, time
from pathlib import Path
from tests.securing import Authority, Issuer
from kproxy.security import jwks
from kproxy.security.acls import *
from kproxy.security.permits import Permits
from kproxy.security.peer import Peer
d = Path(sys.argv[1]); a = Authority(d / "c"); i = Issuer(d / "i")
# F4
ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); ctx.load_cert_chain(a.server)
s = socket.create_server(("127.0.0.1", 0)); port = s.getsockname()[1]
good = i.path.read_bytes(); mode = ["good"]
def serve():
    while True:
        c, _ = s.accept()
        try:
            t = ctx.wrap_socket(c, server_side=True); t.recv(65536)
            t.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(good) + good if mode[0] == "good"
                      else b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\ncut")
            t.close()
        except OSError as e: print(e)
threading.Thread(target=serve, daemon=True).start()
os.environ["SSL_CERT_FILE"] = str(a.ca)
jwks._SOONEST_S = 0.1
k = jwks.KeySet(f"https://localhost:{port}/"); k.start(); print("F4 keys", len(k.keys()))
time.sleep(.3); mode[0] = "bad"; k.want(); time.sleep(1)
print("F4 thread alive:", k._thread.is_alive())
# F7
class R:
    generation = 1; acls = Acls()
R.acls.add(Binding(2, "q", 3, "User:alice", "*", Op.READ, Effect.ALLOW))
R.acls.add(Binding(2, "q", 3, "User:alice", "0:0:0:0:0:0:0:1", Op.READ, Effect.DENY))
print("F7 denied by Kafka's form of ::1, may read:", Permits(Peer("User:alice", "::1"), R).topic(Op.READ, "q"))
