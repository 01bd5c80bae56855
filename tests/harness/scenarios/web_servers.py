"""Servers of the web, and what loads them: nginx, haproxy, Apache; wrk, ab, curl."""

import contextlib
import os
import re
import signal

from .. import process
from ..case import check
from . import PYTHON, Scenario, gone, read_pid

_NGINX = {"nginx": "nginx-light", "curl": "curl"}
_WRK = {"wrk": "wrk"}
_HAPROXY = {"haproxy": "haproxy"}
_APACHE = {"apache2": "apache2-bin", "ab": "apache2-utils"}
_OPENSSL = {"openssl": "openssl"}
_MODULES = "/usr/lib/apache2/modules"


def pages(place):
    """A folder with files of several sizes."""
    folder = place.folder / "pages"
    folder.mkdir(exist_ok=True)
    for name, size in (("empty", 0), ("small", 100), ("middle", 30_000), ("large", 3_000_000)):
        (folder / name).write_bytes(bytes(at * 7 % 251 for at in range(min(size, 5020)))
                                    * (-(-size // 5020)))
    return folder


def nginx_configuration(place, root, name="nginx", background=True, more=""):
    """A static server at 7013, and one at 7014 that asks it by kept connections."""
    folder = place.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "n.conf").write_text(f"""
daemon {"on" if background else "off"}; worker_processes 2; user root; pid {folder}/pid;
error_log {folder}/log;
events {{ accept_mutex on; }}
http {{
    access_log off; sendfile on; tcp_nopush on; client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
    scgi_temp_path {folder}/s; types {{ }} default_type text/plain;
    upstream up {{ server 127.0.0.1:7013; keepalive 4; }}
    server {{ listen 127.0.0.1:7013 reuseport; root {root}; }}
    server {{ listen 127.0.0.1:7014; location / {{ proxy_pass http://up; proxy_http_version 1.1;
             proxy_set_header Connection ""; }} }}
    {more}
}}
""")
    return ["nginx", "-p", folder, "-c", folder / "n.conf"]


def fetched(place, port, names=("empty", "small", "middle", "large"), scheme="http"):
    """Sums of what comes, by kept connections."""
    urls = " ".join(f"{scheme}://127.0.0.1:{port}/{name}" for name in names)
    return place.shell(f"curl -k -sS --max-time 20 {urls} | sha256sum; "
                       f"curl -k -sS --max-time 20 {' -o /dev/null' * len(names)} -w "
                       f"'%{{http_code}} %{{num_connects}} %{{size_download}}\\n' {urls}")


def load(place, url, connections=16):
    """Whether all goes well under load, for a second."""
    text = place.ask("wrk", "-t", 1, "-c", connections, "-d", 1, url)
    return [re.findall(r"^ *(Socket errors|Non-2xx).*$", text, re.MULTILINE),
            int(re.search(r"(\d+) requests in", text)[1]) > 0]


def _nginx(background):
    def run(place):
        """Workers that share listeners; files by sendfile; kept connections to another server."""
        command = nginx_configuration(place, pages(place), background=background)
        pid_file = place.folder / "nginx" / "pid"
        with (place.daemon(7014, pid_file, *command) if background
              else place.serve(7014, *command)):
            seen = [fetched(place, 7013), fetched(place, 7014)]
            before = set(process.descendants(read_pid(pid_file)))
            place.ask(*command, "-s", "reload", side=0)
            process.until(lambda: not before & set(process.descendants(read_pid(pid_file))), 15,
                          "new workers")
            return [*seen, fetched(place, 7013), fetched(place, 7014)]
    return run


def _nginx_loaded(place):
    """Under load."""
    command = nginx_configuration(place, pages(place))
    with place.daemon(7014, place.folder / "nginx" / "pid", *command):
        return [load(place, f"http://127.0.0.1:{port}/{name}") for port in (7013, 7014)
                for name in ("empty", "small", "middle")]


def _nginx_upgraded(place):
    """A new program has the listeners of the old one, by their numbers; the old one ends."""
    command = nginx_configuration(place, pages(place))
    pid_file = place.folder / "nginx" / "pid"
    with place.daemon(7014, pid_file, *command):
        old = read_pid(pid_file)
        seen = [fetched(place, 7014)]
        os.kill(old, signal.SIGUSR2)
        process.until(lambda: (pid_file.parent / "pid.oldbin").exists() and read_pid(pid_file)
                      != old and process.descendants(read_pid(pid_file)), 10, "a new program")
        seen.append(fetched(place, 7014))
        os.kill(old, signal.SIGWINCH)  # its workers end
        os.kill(old, signal.SIGQUIT)
        gone(old)
        return [*seen, fetched(place, 7013), fetched(place, 7014)]


def certificate(place):
    """A key and a certificate that nobody has signed."""
    place.ask("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
              "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
              "-subj", "/CN=localhost", "-days", 2)
    pem = (place.folder / "key.pem").read_text() + (place.folder / "cert.pem").read_text()
    (place.folder / "both.pem").write_text(pem)


def _encrypted(place):
    """TLS, by nginx and curl."""
    certificate(place)
    root = pages(place)
    more = (f"server {{ listen 127.0.0.1:7016 ssl; ssl_certificate {place.folder}/cert.pem; "
            f"ssl_certificate_key {place.folder}/key.pem; root {root}; }}")
    command = nginx_configuration(place, root, background=False, more=more)
    with place.serve(7016, *command):
        return [fetched(place, 7016, scheme="https")]


def _curl(place):
    """Many at a time, ranges, an upload, a name that has nobody behind it."""
    root = pages(place)
    more = (f"server {{ listen 127.0.0.1:7017; root {place.folder}/put; location /mirror {{ "
            "client_max_body_size 9m; proxy_pass http://127.0.0.1:7018; } } "
            "server { listen 127.0.0.1:7018; client_max_body_size 9m; location / { "
            "return 200 $http_content_length; } }")
    command = nginx_configuration(place, root, background=False, more=more)
    with place.serve(7014, *command):
        large = root / "large"
        return [
            place.shell("curl -sS -Z --no-progress-meter --parallel-max 8 --max-time 20 "
                        "'http://127.0.0.1:7014/large?[1-8]' | wc -c"),
            place.shell("curl -sS --max-time 20 -r 1000-1999 http://127.0.0.1:7013/large"
                        " | sha256sum"),
            place.shell(f"curl -sS --max-time 20 --data-binary @{large} "
                        "http://127.0.0.1:7017/mirror"),
            place.shell("curl -sS --max-time 20 -I http://127.0.0.1:7013/none | head -1"),
            re.sub(r"after \d+ ms", "", place.ask("curl", "-sS", "--max-time", 5,
                                                  "http://127.0.0.1:7999/", accept=(7,))),
            place.ask("curl", "-sS", "--max-time", 5, "--limit-rate", "4M", "-o", "/dev/null",
                      "-w", "%{size_download}", "http://127.0.0.1:7013/large"),
        ]


def haproxy_configuration(place, backends, more=""):
    """A balancer at 7021 before `backends`, with threads and splice."""
    folder = place.folder / "haproxy"
    folder.mkdir(exist_ok=True)
    servers = "\n".join(f"    server s{at} 127.0.0.1:{port}" for at, port in enumerate(backends))
    (folder / "h.cfg").write_text(f"""
global
    nbthread 2
    stats socket {folder}/stats mode 600 level admin expose-fd listeners
    {more}
defaults
    mode http
    timeout connect 5s
    timeout client 10s
    timeout server 10s
    option splice-auto
    option splice-request
    option splice-response
    http-reuse always
frontend front
    bind 127.0.0.1:7021
    default_backend back
backend back
    balance roundrobin
{servers}
listen stream
    mode tcp
    bind 127.0.0.1:7022
    server s 127.0.0.1:{backends[0]}
""")
    return folder / "h.cfg"


@contextlib.contextmanager
def _behind(place):
    """A web server on the client's side."""
    command = nginx_configuration(place, pages(place), background=False)
    with place.serve(7014, *command, side=1):
        yield


def _haproxy(place):
    """Threads; bytes that are spliced; both of HTTP and of any stream."""
    configuration = haproxy_configuration(place, [7013, 7014])
    with _behind(place), place.serve(7021, "haproxy", "-db", "-f", configuration):
        return [fetched(place, 7021), fetched(place, 7022),
                fetched(place, 7021, ["small"] * 4)]


def _haproxy_loaded(place):
    """Under load."""
    configuration = haproxy_configuration(place, [7013, 7014])
    with _behind(place), place.serve(7021, "haproxy", "-db", "-f", configuration):
        return [load(place, f"http://127.0.0.1:{port}/{name}") for port in (7021, 7022)
                for name in ("small", "middle")]


def _haproxy_handed(place):
    """A new process gets the listeners by a socket of the old one, which then ends."""
    configuration = haproxy_configuration(place, [7013])
    folder = configuration.parent
    with _behind(place):
        with place.running("haproxy", "-db", "-f", configuration, side=0) as (old, _):
            place.listening(7021, old)
            seen = [fetched(place, 7021)]
            with place.running("haproxy", "-db", "-f", configuration, "-x", folder / "stats",
                               "-sf", old.pid, side=0) as (new, said):
                seen.append(old.wait(15))
                seen += [fetched(place, 7021), fetched(place, 7022)]
                check(new.poll() is None, said.read_text())
    return seen


def _haproxy_reloaded(place):
    """A master that executes itself anew, with workers that get the listeners."""
    configuration = haproxy_configuration(place, [7013])
    with _behind(place):
        with place.running("haproxy", "-W", "-db", "-f", configuration, side=0) as (master, _):
            place.listening(7021, master)
            seen = [fetched(place, 7021)]
            before = set(process.descendants(master.pid))
            os.kill(master.pid, signal.SIGUSR2)
            process.until(lambda: (now := set(process.descendants(master.pid)))
                          and not before & now, 15, "a new worker")
            place.listening(7021, master)
            return [*seen, fetched(place, 7021), fetched(place, 7022)]


def _apache_configuration(place, how):
    folder = place.folder / "apache"
    folder.mkdir(exist_ok=True)
    (folder / "a.conf").write_text(f"""
ServerRoot {folder}
ServerName localhost
PidFile {folder}/pid
DefaultRuntimeDir {folder}
Listen 127.0.0.1:7031
LoadModule mpm_{how}_module {_MODULES}/mod_mpm_{how}.so
LoadModule authz_core_module {_MODULES}/mod_authz_core.so
LoadModule proxy_module {_MODULES}/mod_proxy.so
LoadModule proxy_http_module {_MODULES}/mod_proxy_http.so
ErrorLog {folder}/log
DocumentRoot {pages(place)}
EnableSendfile on
MaxKeepAliveRequests 0
User www-data
Group www-data
ProxyPass /again/ http://127.0.0.1:7031/
""")
    return ["apache2", "-d", folder, "-f", folder / "a.conf"]


def _apache(how):
    def run(place):
        """Files, a proxy, and a gracious restart; how many requests went well."""
        command = _apache_configuration(place, how)
        pid_file = place.folder / "apache" / "pid"
        with place.daemon(7031, pid_file, *command, "-k", "start"):
            seen = [_benched(place, name, *words) for name, words in
                    (("small", ["-k"]), ("small", []), ("middle", ["-k"]), ("again/small", []))]
            seen.append(fetched(place, 7031))
            before = set(process.descendants(read_pid(pid_file)))
            os.kill(read_pid(pid_file), signal.SIGUSR1)
            process.until(lambda: (now := set(process.descendants(read_pid(pid_file))))
                          and not before & now, 20, "new workers")
            return [*seen, fetched(place, 7031)]
    return run


def _benched(place, name, *words):
    text = place.ask("ab", "-q", "-n", 300, "-c", 8, *words, f"http://127.0.0.1:7031/{name}")
    return re.findall(r"^((?:Complete|Failed|Keep-Alive|Non-2xx)[^:]*|HTML transferred): +(\d+)",
                      text, re.MULTILINE)


def _listed(place):
    """Python's own server of files, a thread for each connection."""
    with place.serve(7041, PYTHON, "-B", "-m", "http.server", "-b", "127.0.0.1", "-d",
                     pages(place), 7041):
        return [fetched(place, 7041),
                place.shell("curl -sS --max-time 9 http://127.0.0.1:7041/ | grep -c href")]


SCENARIOS = [
    Scenario("nginx", _nginx(False), _NGINX),
    Scenario("nginx.daemon", _nginx(True), _NGINX),
    Scenario("nginx.loaded", _nginx_loaded, _NGINX | _WRK),
    Scenario("nginx.upgraded", _nginx_upgraded, _NGINX),
    Scenario("nginx.encrypted", _encrypted, _NGINX | _OPENSSL, daily=True, carried=True),
    Scenario("curl", _curl, _NGINX, daily=True, carried=True),
    Scenario("haproxy", _haproxy, _NGINX | _HAPROXY, daily=True),
    Scenario("haproxy.loaded", _haproxy_loaded, _NGINX | _HAPROXY | _WRK),
    Scenario("haproxy.handed", _haproxy_handed, _NGINX | _HAPROXY),
    Scenario("haproxy.reloaded", _haproxy_reloaded, _NGINX | _HAPROXY),
    Scenario("apache.event", _apache("event"), _APACHE),
    Scenario("apache.prefork", _apache("prefork"), _APACHE),
    Scenario("apache.worker", _apache("worker"), _APACHE),
    Scenario("files", _listed, {"curl": "curl"}),
]
