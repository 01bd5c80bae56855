//! Shows sockets in `omniverb status`: their processes, and whether their bytes are carried.
//!
//! The broker shows rows (`sockets/formats/src/socket_status_rows.rs`): an operator all, others
//! those of their own network namespace. Where there are links it is asked twice, a moment apart:
//! the difference is the rate.

use crate::tenant_connection::PATIENCE;
use crate::text_table::{Table, amount};
use anyhow::bail;
use omniverb_formats::broker_message::{Request, SUFFIX};
use omniverb_formats::channel_layout;
use omniverb_formats::link_layout::RING;
use omniverb_formats::socket_status_rows::{BYTES, Channel, Listener, Process, Row, Socket, State};
use omniverb_sys::{eventfd, seqpacket};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Between the two looks.
const MOMENT: Duration = Duration::from_millis(200);
/// Rows that are read: more than a broker has.
const MOST: usize = 1 << 23;

/// A process with what it has.
struct Shown {
    process: Process,
    sockets: Vec<Socket>,
    listeners: Vec<Listener>,
    channels: Vec<Channel>,
}

type Rows = Vec<Shown>;

/// To the broker, as a tenant; `None`: there is none.
pub(crate) fn connect(daemon: &Path) -> anyhow::Result<Option<OwnedFd>> {
    let mut path = daemon.as_os_str().to_owned();
    path.push(SUFFIX);
    let Ok(broker) = seqpacket::connect(Path::new(&path)) else { return Ok(None) };
    seqpacket::send(broker.as_fd(), &Request::ShowSockets.encode(), &[])?;
    Ok(Some(broker))
}

/// Adds what the broker shows to a document; a broker that does not answer adds why.
pub(crate) fn add(status: &mut Value, ask: impl Fn() -> anyhow::Result<Option<OwnedFd>>) {
    match twice(ask) {
        Ok(Some((rows, before, time))) => {
            status["sockets"] = document(status, &rows, &before, time)
        }
        Ok(None) => {}
        Err(error) => status["sockets_trouble"] = error.to_string().into(),
    }
}

/// The sockets now, the sockets a moment before, and the time between.
fn twice(
    ask: impl Fn() -> anyhow::Result<Option<OwnedFd>>,
) -> anyhow::Result<Option<(Rows, Rows, Duration)>> {
    let Some(broker) = ask()? else { return Ok(None) };
    let (rows, began) = (read(&broker)?, Instant::now());
    if !rows.iter().flat_map(|shown| &shown.sockets).any(|socket| socket.link != 0) {
        return Ok(Some((rows, Vec::new(), Duration::ZERO)));
    }
    thread::sleep(MOMENT);
    let Some(broker) = ask()? else { return Ok(None) };
    let after = read(&broker)?;
    Ok(Some((after, rows, began.elapsed())))
}

fn read(broker: &OwnedFd) -> anyhow::Result<Rows> {
    let mut rows: Rows = Vec::new();
    for _ in 0..MOST {
        if !eventfd::readable(broker.as_fd(), Some(PATIENCE))? {
            bail!("the broker of sockets does not answer");
        }
        let mut bytes = [0; BYTES];
        let (length, _) =
            seqpacket::receive(broker.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking)?;
        match Row::decode(&bytes[..length]) {
            Some(Row::Process(process)) => rows.push(Shown::of(process)),
            Some(Row::End) => return Ok(rows),
            Some(row) => {
                if let Some(last) = rows.last_mut() {
                    last.add(row);
                }
            }
            None if length == 0 => bail!("the broker of sockets has ended"),
            None => bail!("the broker of sockets is of another version"),
        }
    }
    bail!("the answer of the socket broker is too long")
}

impl Shown {
    fn of(process: Process) -> Shown {
        let (sockets, listeners, channels) = (Vec::new(), Vec::new(), Vec::new());
        Shown { process, sockets, listeners, channels }
    }

    fn add(&mut self, row: Row) {
        match row {
            Row::Socket(socket) => self.sockets.push(socket),
            Row::Listener(listener) => self.listeners.push(listener),
            Row::Channel(channel) => self.channels.push(channel),
            Row::Process(_) | Row::End => {}
        }
    }
}

fn document(status: &Value, rows: &Rows, before: &Rows, time: Duration) -> Value {
    let earlier = before.iter().flat_map(|shown| &shown.sockets);
    let earlier: HashMap<_, _> = earlier.map(|socket| (key(socket), socket)).collect();
    let vnics = status["vnics"].as_array().map_or(&[][..], Vec::as_slice);
    let vnic = |namespace: u64| {
        let found = vnics.iter().find(|vnic| vnic["cookie"].as_u64() == Some(namespace));
        found.map_or(Value::Null, |vnic| vnic["name"].clone())
    };
    // One that has come or gone meanwhile may not be among them.
    let peers: HashMap<u64, i32> =
        rows.iter().map(|shown| (shown.process.number, shown.process.pid)).collect();
    let channel = |channel: &Channel| {
        json!({
            "name": channel.name,
            "peer_pid": peers.get(&channel.peer),
            "asked": channel.has_asked,
            "across": channel.is_across,
        })
    };
    let process = |Shown { process, sockets, listeners, channels }: &Shown| {
        let all: Vec<Value> = sockets
            .iter()
            .map(|socket| one(socket, earlier.get(&key(socket)).copied(), time))
            .collect();
        let listeners: Vec<String> =
            listeners.iter().map(|listener| listener.local.to_string()).collect();
        json!({
            "pid": process.pid,
            "uid": process.uid,
            "name": name(process),
            "namespace_cookie": process.namespace,
            "vnic": vnic(process.namespace),
            "sockets": all,
            "light_listeners": listeners,
            "channels": channels.iter().map(channel).collect::<Vec<_>>(),
        })
    };
    rows.iter().map(process).collect()
}

/// Identifies an end of a link, or of a connection of a channel.
fn key(socket: &Socket) -> (u64, [SocketAddr; 2]) {
    (socket.link, [socket.local, socket.remote])
}

fn name(process: &Process) -> String {
    let name = process.name.split(|byte| *byte == 0).next().unwrap_or_default();
    omniverb_session::printable::clean(&String::from_utf8_lossy(name))
}

fn one(socket: &Socket, before: Option<&Socket>, time: Duration) -> Value {
    let rate = |now: u64, before: Option<u64>| {
        let bytes = now.saturating_sub(before?);
        (time > Duration::ZERO).then(|| (bytes as f64 / time.as_secs_f64()) as u64)
    };
    let before = before.filter(|_| socket.link != 0);
    let ring = if socket.state == State::Light { channel_layout::RING } else { RING };
    let full = |bytes: u32| (f64::from(bytes) * 100.0 / ring as f64).round() as u64;
    json!({
        "local": socket.local.to_string(),
        "remote": socket.remote.to_string(),
        "state": socket.state.name(),
        "why": socket.reason.phrase(),
        "reach": if socket.is_across { "another network namespace" } else { "" },
        "bytes_sent": socket.sent,
        "bytes_received": socket.received,
        "sent_per_second": rate(socket.sent, before.map(|one| one.sent)),
        "received_per_second": rate(socket.received, before.map(|one| one.received)),
        "unread_by_peer": socket.unread[0],
        "unread": socket.unread[1],
        "ring_full_percent": socket.unread.map(full),
    })
}

/// The status as text, for people.
pub(crate) fn people(status: &Value) -> String {
    if let Some(trouble) = status["sockets_trouble"].as_str() {
        return format!("\nsockets: {trouble}\n");
    }
    let Some(processes) = status["sockets"].as_array() else { return String::new() };
    let mut out = String::from("\nsockets");
    if processes.is_empty() {
        out += ": no process has any that could be carried";
    }
    out.push('\n');
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or("").to_owned();
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    for process in processes {
        let sockets = process["sockets"].as_array().map_or(&[][..], Vec::as_slice);
        let count =
            |state: State| sockets.iter().filter(|socket| socket["state"] == state.name()).count();
        let light_ones = match count(State::Light) {
            0 => String::new(),
            count => format!(", {count} light"),
        };
        out += &format!(
            "  process {} {}  user {}  {}  {} sockets, {} carried{light_ones}\n",
            process["pid"].as_i64().unwrap_or(0),
            text(process, "name"),
            number(process, "uid"),
            process["vnic"].as_str().unwrap_or("no vNIC"),
            sockets.len(),
            count(State::Carried),
        );
        out += &light(process);
        if sockets.is_empty() {
            continue;
        }
        let mut table = Table::new(&[
            "local", "remote", "bytes go", "sent", "per s", "received", "per s", "full", "why",
        ]);
        for socket in sockets {
            let has_link = socket["sent_per_second"].is_u64()
                || number(socket, "bytes_sent") > 0
                || number(socket, "bytes_received") > 0;
            let shown = |key: &str| match has_link {
                true => amount(number(socket, key)),
                false => "-".into(),
            };
            let full = socket["ring_full_percent"].as_array().map_or(&[][..], Vec::as_slice);
            let full: Vec<String> = full.iter().map(|part| format!("{part}%")).collect();
            table.row(vec![
                text(socket, "local"),
                text(socket, "remote"),
                match (socket["state"].as_str(), socket["reach"].as_str()) {
                    (Some("carried"), Some("")) => "through memory".into(),
                    (Some("carried"), _) => "through memory, across".into(),
                    (Some("light"), Some("")) => "through memory, light".into(),
                    (Some("light"), _) => "through memory, light, across".into(),
                    (Some("left"), _) => "by the kernel again".into(),
                    _ => "by the kernel".into(),
                },
                shown("bytes_sent"),
                shown("sent_per_second"),
                shown("bytes_received"),
                shown("received_per_second"),
                if has_link { full.join("/") } else { "-".into() },
                text(socket, "why"),
            ]);
        }
        out += &table.render("    ");
    }
    out
}

/// The address where a process listens for channels, and its channels.
fn light(process: &Value) -> String {
    let all = |key: &str| process[key].as_array().map_or(&[][..], Vec::as_slice);
    let line = |of: &str, each: Vec<String>| match each.is_empty() {
        true => String::new(),
        false => format!("    {of} {}\n", each.join(", ")),
    };
    let at = all("light_listeners").iter().filter_map(Value::as_str).map(str::to_owned);
    let peer = |channel: &Value| match (channel["peer_pid"].as_i64(), channel["across"] == true) {
        (Some(pid), false) => pid.to_string(),
        (Some(pid), true) => format!("{pid} (across)"),
        (None, false) => "unknown".into(),
        // A tenant is not told of others.
        (None, true) => "elsewhere".into(),
    };
    line("reached without TCP at", at.collect())
        + &line("channels to processes", all("channels").iter().map(peer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_formats::socket_status_rows::{NAME, Reason};

    fn rows() -> Rows {
        let mut name = [0; NAME];
        name[..6].copy_from_slice(b"re\x1bdis");
        let process = Process { number: 1, pid: 77, uid: 5, namespace: 9, name };
        let carried = Socket {
            process: 1,
            local: ([10, 0, 0, 1], 80).into(),
            remote: ([10, 0, 0, 2], 40000).into(),
            state: State::Carried,
            reason: Reason::None,
            is_across: true,
            link: 3,
            sent: 3 << 20,
            received: 100,
            unread: [RING as u32 / 2, 0],
        };
        let shared = Socket { state: State::Shadow, reason: Reason::Shared, link: 0, ..carried };
        let unread = [channel_layout::RING as u32 / 4, 0];
        let light = Socket { state: State::Light, is_across: false, link: 4, unread, ..carried };
        let listener = Listener { process: 1, local: ([0, 0, 0, 0], 6379).into() };
        let channel = |peer, is_across| {
            Row::Channel(Channel { process: 1, name: 8, peer, has_asked: false, is_across })
        };
        let rows = [
            Row::Socket(carried),
            Row::Socket(Socket { sent: 0, received: 0, ..shared }),
            Row::Socket(light),
            Row::Listener(listener),
            channel(2, false),
            channel(2, true),
            channel(3, false),
            channel(3, true),
        ];
        let [mut shown, peer] = [process, Process { number: 2, pid: 78, ..process }].map(Shown::of);
        rows.into_iter().for_each(|row| shown.add(row));
        vec![shown, peer]
    }

    #[test]
    fn a_socket_is_shown_with_its_reason_and_its_rate() {
        let mut status = json!({ "vnics": [{ "name": "vnic-5", "cookie": 9 }] });
        let mut before = rows();
        before[0].sockets[0].sent = 1 << 20;
        status["sockets"] = document(&status, &rows(), &before, Duration::from_secs(2));
        let process = &status["sockets"][0];
        assert_eq!((&process["vnic"], &process["name"]), (&json!("vnic-5"), &json!("re?dis")));
        assert_eq!(process["sockets"][0]["sent_per_second"], 1 << 20);
        assert_eq!(process["sockets"][0]["ring_full_percent"], json!([50, 0]));
        assert_eq!(process["sockets"][2]["ring_full_percent"], json!([25, 0]));
        assert_eq!(process["light_listeners"], json!(["0.0.0.0:6379"]));
        let channels = [78.into(), Value::Null].into_iter().flat_map(|pid: Value| {
            let channel = |is_across: bool| {
                json!({ "name": 8, "peer_pid": pid, "asked": false, "across": is_across })
            };
            [false, true].map(channel)
        });
        let channels: Vec<Value> = channels.collect();
        assert_eq!(process["channels"], json!(channels));
        let text = people(&status);
        for part in [
            "reached without TCP at 0.0.0.0:6379\n",
            "channels to processes 78, 78 (across), unknown, elsewhere\n",
            "process 77 re?dis  user 5  vnic-5  3 sockets, 1 carried, 1 light",
            "through memory, across",
            "through memory, light  ",
            "3.0 MiB",
            "1.0 MiB",
            "50%/0%",
            "other processes have it, too",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(people(&json!({})), "");
    }
}
