import base64, hashlib, hmac, os, socket, sys, time, threading, json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4
import psutil
from kproxy.security import scram
from kproxy.protocol.codec import encode_request
from tests.securing import *
from tests.wire import Wire, batch, fetch_values

d = Path(sys.argv[1]); d.mkdir(parents=True, exist_ok=True)
site = Site(d)
port6 = site.port["OUTSIDE"] + 7
site.config.write_text('authorizer = "acl"\nsuper_users = ["User:ANONYMOUS"]\n' + site.listeners())

def say(*a): print(f"{time.strftime('%H:%M:%S')}", *a, flush=True)

def rule(w, principal, kind, name, op, effect=3, host="*", pattern=3):
    a = w.call(30, 3, {"creations": [{"resource_type": kind, "resource_name": name, "resource_pattern_type": pattern,
        "principal": principal, "host": host, "operation": op, "permission_type": effect}]})
    assert not a.results[0].error_code, a

def alter(w, queue, **kv):
    res = {"resource_type": 2, "resource_name": queue, "configs": [{"name": k.replace("_", "."), "config_operation": 0, "value": v} for k, v in kv.items()]}
    r = w.call(44, 1, {"resources": [res], "validate_only": False}).responses[0]
    return r.error_code, r.error_message

def main():
  with site.running():
    site.add_user("alice"); site.add_user("bob")
    inside = site.wire("INSIDE")
    # F2
    assert inside.create("a").error_code == 0
    c = inside.create("b", kproxy_route_from="a", kproxy_route_filter="key:x-"); assert c.error_code == 0, c
    for op in (3, 11): rule(inside, "User:bob", 2, "b", op)
    bob = site.wire("SASL"); assert log_in(bob, user="bob").error_code == 0
    inside.produce("a", batch(b"secret-1")); time.sleep(.6)
    f = bob.fetch("a", 0); say("F2 bob fetches a:", f.error_code)
    f = bob.fetch("b", 0); say("F2 bob fetches b before:", f.error_code, bytes(f.records or b"").count(b"secret"))
    say("F2 bob alters filter of b:", alter(bob, "b", kproxy_route_filter=""))
    inside.produce("a", batch(b"secret-2")); time.sleep(1)
    f = bob.fetch("b", 0); say("F2 bob fetches b after:", f.error_code, b"secret-2" in bytes(f.records or b""))
    # F8: revoked
    # F5
    cid = inside.metadata().cluster_id
    say("cluster id", cid)
    hashed = scram.salted("SCRAM-SHA-256", b"pw", s := os.urandom(24), 4096)
    altered(inside, upsertions=[{"name": "carol", "mechanism": 1, "iterations": 4096, "salt": s, "salted_password": hashed}])
    sec = hashlib.sha256(f"kproxy nobody {cid}".encode()).digest()
    for u in ("carol", "nobody", "dave"):
        w = site.wire("SASL"); handshake(w, "SCRAM-SHA-256")
        a = authenticate(w, scram.Client("SCRAM-SHA-256", u, "x").first()).auth_bytes
        salt = base64.b64decode(a.split(b",s=")[1].split(b",")[0])
        say("F5", u, "exists" if salt != hmac.digest(sec, f"SCRAM-SHA-256 {u}".encode(), "sha256")[:24] else "does not exist")
        w.socket.close()
    # F3
    n = len([x for x in site.server.raw if "login_failed" in x])
    w = site.wire("SASL"); handshake(w, "OAUTHBEARER")
    other = Issuer(d / "other"); t = time.monotonic()
    a = authenticate(w, bearer(other.token("admin")))
    say("F3 refused token:", a.error_code, a.auth_bytes, f"{(time.monotonic()-t)*1000:.1f} ms")
    w.socket.close(); time.sleep(.5)
    say("F3 login_failed events more:", len([x for x in site.server.raw if "login_failed" in x]) - n)
    # share sessions
    rule(inside, "User:bob", 3, "g", 3)
    bob = site.wire("SASL"); assert log_in(bob, user="bob").error_code == 0
    codes = {}
    for i in range(2005):
        v = {"group_id": "g", "member_id": str(uuid4())[:22], "share_session_epoch": 0, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000,
             "max_records": 1, "batch_size": 1, "topics": [], "forgotten_topics_data": []}
        c = int(bob.call(78, 1, v).error_code); codes[c] = codes.get(c, 0) + 1
    v["group_id"] = "other"; v["member_id"] = "abcdefghijklmnopqrstuw"
    say("F22 share sessions of bob by code:", codes, "; admin's own, of another group:", inside.call(78, 1, v).error_code)
    bob.socket.close()
    # F11
    pid = psutil.Process(site.server.process.pid)
    rss0 = pid.memory_info().rss
    names = ["%06d" % i + "n" * 32000 for i in range(990)]
    for k in range(2, 10):
        w = Wire.__new__(Wire); w.socket = socket.create_connection(("127.0.0.1", site.port["SASL"]), 20, source_address=(f"127.0.0.{k}", 0)); w._correlation = 0
        assert log_in(w, user="alice").error_code == 0
        r = w.metadata(*names, create=False); w.socket.close()
        say("F11 peer", k, "code", r.topics[0].error_code, "RSS +MB", (pid.memory_info().rss - rss0) >> 20)
    time.sleep(3); say("F11 after: RSS +MB", (pid.memory_info().rss - rss0) >> 20)
    # F1
    bad = b"p=tls-unique,,n=alice,r=abc"
    def fail(_):
        try:
            w = site.wire("SASL"); handshake(w, "SCRAM-SHA-256"); a = authenticate(w, bad); w.socket.close(); return int(a.error_code)
        except (OSError, AssertionError) as e: return type(e).__name__
    t = time.monotonic(); w = site.wire("SASL"); a = log_in(w, "PLAIN", "alice", "wrong"); say("F1 at first:", a.error_code, f"{time.monotonic()-t:.2f} s")
    with ThreadPoolExecutor(350) as pool: told = list(pool.map(fail, range(1760)))
    say("F1 1760 failures:", {k: told.count(k) for k in set(map(str, told)) | set(told) if told.count(k)})
    for _ in range(3):
        t = time.monotonic()
        try: w = site.wire("SASL"); a = log_in(w, "PLAIN", "alice", "wrong"); r = a.error_code
        except (OSError, ConnectionError) as e: r = repr(e)
        say("F1 after:", r, f"{(time.monotonic()-t)*1000:.1f} ms")
    t = time.monotonic(); k = 0
    while time.monotonic() - t < 3:
        try: w = site.wire("SASL"); log_in(w, "PLAIN", "alice", f"guess{k}")
        except (OSError, ConnectionError): pass
        k += 1; w.socket.close()
    say("F1 guesses a second, one at a time:", k / 3)
    say("F1 log:", [x for x in site.server.raw if "OverflowError" in x or "request_failed" in x][-1][-300:])
try: main()
except Exception:
    import traceback; traceback.print_exc()
