//! Finds the Ethernet address that packets to an IP address leave to (rtnetlink).
//!
//! A neighbour that is not known yet is asked for by the kernel, which a datagram to it has it do.

use crate::local_addresses::{attributes, ip, request, u16_at, u32_at};
use crate::outgoing_interface;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// A neighbour that is being asked for, or does not answer.
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_FAILED: u16 = 0x20;
const IFLA_ADDRESS: u16 = 1;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
/// Attributes with attributes within may say so by the highest bits of their kind.
const KIND: u16 = 0x3fff;
/// How often the table is looked at, and how often the kernel is made to ask once more.
const PAUSE: Duration = Duration::from_millis(10);
const LOOKS_PER_QUESTION: u32 = 50;
/// Where the datagram goes that has the kernel ask: no program is to answer ("discard").
const DISCARD: u16 = 9;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextHop {
    /// They stay in this namespace.
    Home,
    /// To this address, by this interface.
    By(IpAddr, u32),
}

/// What is of interest about an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Link {
    index: u32,
    mac: Option<Mac>,
    vlan: Option<u16>,
}

/// The Ethernet address of `destination` for packets that leave by an interface; for one of our own
/// addresses that of the interface. `None`: there was no answer for so long, or there is no way.
///
/// # Errors
/// What the kernel says.
pub fn resolve(destination: IpAddr, interface: u32, patience: Duration) -> io::Result<Option<Mac>> {
    if let Some(group) = group(destination) {
        return Ok(Some(group));
    }
    let (next, by) = match way(destination, interface)? {
        None => return Ok(None),
        Some(NextHop::Home) => return Ok(link(interface)?.and_then(|link| link.mac)),
        Some(NextHop::By(next, by)) => (next, by),
    };
    let until = Instant::now() + patience;
    for look in 0.. {
        if let Some(mac) = known(next, by)? {
            return Ok(Some(mac));
        }
        if Instant::now() >= until {
            break;
        }
        if look % LOOKS_PER_QUESTION == 0 {
            ask(next, by);
        }
        sleep(PAUSE);
    }
    Ok(None)
}

/// The number of the VLAN that an interface is; `None` if it is none.
///
/// # Errors
/// What the kernel says.
pub fn vlan(interface: u32) -> io::Result<Option<u16>> {
    Ok(link(interface)?.and_then(|link| link.vlan))
}

/// Groups have addresses that follow from theirs (RFC 1112, RFC 2464).
fn group(destination: IpAddr) -> Option<Mac> {
    match destination {
        IpAddr::V4(four) if four.is_multicast() => {
            let [_, b, c, d] = four.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(six) if six.is_multicast() => {
            let [.., a, b, c, d] = six.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn bytes_of(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

/// One whose value has whole words: length, kind, value.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    [&(value.len() as u16 + 4).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
}

fn way(destination: IpAddr, interface: u32) -> io::Result<Option<NextHop>> {
    let address = bytes_of(destination);
    // `struct rtmsg`: family, prefix lengths of destination and source, and nine bytes more.
    let mut body = vec![0; 12];
    (body[0], body[1]) = (family(destination), address.len() as u8 * 8);
    for (kind, value) in [(RTA_DST, &address[..]), (RTA_OIF, &interface.to_ne_bytes()[..])] {
        body.extend(attribute(kind, value));
    }
    let mut found = None;
    let told = request(RTM_GETROUTE, &body, |kind, body| {
        if kind == RTM_NEWROUTE {
            found = parse_route(body, destination);
        }
    });
    unless(told, &[libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL])?;
    Ok(found)
}

/// `struct rtmsg`, with the type of the route in byte 7; then attributes.
fn parse_route(body: &[u8], destination: IpAddr) -> Option<NextHop> {
    let (mut next, mut by) = (destination, None);
    for attribute in attributes(body.get(12..)?) {
        match attribute? {
            (RTA_GATEWAY, value) => next = ip(value)?,
            (RTA_OIF, value) => by = u32_at(value, 0),
            _ => {}
        }
    }
    match *body.get(7)? {
        RTN_LOCAL => Some(NextHop::Home),
        RTN_UNICAST => by.map(|by| NextHop::By(next, by)),
        _ => None,
    }
}

/// Asked for by its index, since there may be very many others.
fn link(interface: u32) -> io::Result<Option<Link>> {
    // `struct ifinfomsg`.
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut found = None;
    let told = request(RTM_GETLINK, &body, |kind, body| {
        if kind == RTM_NEWLINK {
            found = parse_link(body).filter(|link| link.index == interface);
        }
    });
    unless(told, &[libc::ENODEV, libc::EINVAL])?;
    Ok(found)
}

/// What the kernel says where there is no such thing is no error.
fn unless(told: io::Result<()>, nothing: &[i32]) -> io::Result<()> {
    told.or_else(|error| match error.raw_os_error() {
        Some(errno) if nothing.contains(&errno) => Ok(()),
        _ => Err(error),
    })
}

/// `struct ifinfomsg`: family, type, index and eight bytes more; then attributes.
fn parse_link(body: &[u8]) -> Option<Link> {
    let mut link = Link { index: u32_at(body, 4)?, ..Link::default() };
    for attribute in attributes(body.get(16..)?) {
        match attribute? {
            (IFLA_ADDRESS, value) => link.mac = value.try_into().ok(),
            (kind, value) if kind & KIND == IFLA_LINKINFO => link.vlan = parse_vlan(value),
            _ => {}
        }
    }
    Some(link)
}

fn parse_vlan(information: &[u8]) -> Option<u16> {
    let (mut is_vlan, mut number) = (false, None);
    for attribute in attributes(information) {
        match attribute? {
            (IFLA_INFO_KIND, value) => is_vlan = value.strip_suffix(b"\0") == Some(b"vlan"),
            (kind, value) if kind & KIND == IFLA_INFO_DATA => {
                let numbers = attributes(value).flatten();
                number = numbers.filter(|a| a.0 == IFLA_VLAN_ID).find_map(|a| u16_at(a.1, 0));
            }
            _ => {}
        }
    }
    number.filter(|_| is_vlan)
}

/// One entry of the table is asked for (Linux 5.0): others may have filled it.
fn known(next: IpAddr, by: u32) -> io::Result<Option<Mac>> {
    // `struct ndmsg`.
    let mut body = vec![0; 12];
    body[0] = family(next);
    body[4..8].copy_from_slice(&by.to_ne_bytes());
    body.extend(attribute(NDA_DST, &bytes_of(next)));
    let mut found = None;
    let told = request(RTM_GETNEIGH, &body, |kind, body| {
        if kind == RTM_NEWNEIGH {
            found = parse_neighbour(body, next, by);
        }
    });
    // An interface that has gone has no neighbours.
    unless(told, &[libc::ENOENT, libc::ENODEV, libc::EINVAL])?;
    Ok(found)
}

/// `struct ndmsg`: family, three bytes, interface, state, two bytes; then attributes.
fn parse_neighbour(body: &[u8], next: IpAddr, by: u32) -> Option<Mac> {
    let (interface, state) = (u32_at(body, 4)?, u16_at(body, 8)?);
    let (mut is_it, mut mac) = (false, None);
    for attribute in attributes(body.get(12..)?) {
        match attribute? {
            (NDA_DST, value) => is_it = ip(value) == Some(next),
            (NDA_LLADDR, value) => mac = value.try_into().ok(),
            _ => {}
        }
    }
    let answers = state & (NUD_INCOMPLETE | NUD_FAILED) == 0;
    mac.filter(|_| is_it && answers && interface == by)
}

/// Has the kernel ask for that neighbour, by that interface whatever the routes say of others.
/// Whether it could shows in its table.
fn ask(next: IpAddr, by: u32) {
    let (family, to): (AddressFamily, SocketAddr) = match next {
        IpAddr::V4(four) => (AddressFamily::INET, (four, DISCARD).into()),
        IpAddr::V6(six) => (AddressFamily::INET6, SocketAddrV6::new(six, DISCARD, 0, by).into()),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    if let Ok(socket) = socket_with(family, SocketType::DGRAM, flags, None)
        && outgoing_interface::set_interface(socket.as_fd(), family, by).is_ok()
    {
        let _ = sendto(&socket, &[], SendFlags::empty(), &to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use std::io::{BufRead, BufReader, Write};
    use std::net::Ipv4Addr;
    use std::process::{Command, Stdio};

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = super::attribute(kind, value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Does this in a network of its own, with what `ip` made there, if we may.
    fn in_network(commands: &str, work: impl FnOnce() + Send) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let wait = "ip -batch - && echo ready && exec sleep 60";
        let mut holder = Command::new("unshare")
            .args(["-n", "sh", "-c", wait])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        holder.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        let pid = i32::try_from(holder.id()).unwrap();
        let pidfd = crate::pidfd::of(pid).unwrap();
        let network = Namespace::of_process(pid, pidfd.as_fd()).unwrap();
        let done = network.run(|| {
            work();
            Ok(())
        });
        holder.kill().unwrap();
        holder.wait().unwrap();
        done.unwrap();
    }

    /// As long as a table may be, it is the one entry that is asked for.
    #[test]
    fn a_full_table_hides_no_entry() {
        let mut commands = String::from("link add d0 type veth peer name d1\nlink set d0 up\n");
        commands.push_str("addr add 10.1.0.1/16 dev d0\naddr add fd00::1/64 dev d0 nodad\n");
        let entry = |number: u32| (number / 250 + 1, number % 250 + 2);
        for (three, four) in (0..9000).map(entry) {
            let neighbour =
                format!("neigh add 10.1.{three}.{four} lladdr 2:0:0:0:{three:x}:{four:x}");
            commands.push_str(&format!("{neighbour} dev d0 nud permanent\n"));
        }
        commands.push_str("neigh add fd00::2 lladdr 2:0:0:0:6:2 dev d0 nud permanent\n");
        in_network(&commands, || {
            let index = found_index("d0");
            for (three, four) in [0, 4095, 4096, 8999].map(entry) {
                let to = format!("10.1.{three}.{four}").parse().unwrap();
                let found = resolve(to, index, Duration::ZERO).unwrap();
                assert_eq!(found, Some([2, 0, 0, 0, three as u8, four as u8]), "{to}");
            }
            let to = "fd00::2".parse().unwrap();
            assert_eq!(resolve(to, index, Duration::ZERO).unwrap(), Some([2, 0, 0, 0, 6, 2]));
            assert_eq!(known("10.1.250.250".parse().unwrap(), index).unwrap(), None);
            assert_eq!(known(to, index + 1000).unwrap(), None);
            assert_eq!(vlan(index + 1000).unwrap(), None);
        });
    }

    /// Two interfaces in one network, of which the routes prefer another than is meant.
    #[test]
    fn an_unknown_neighbour_is_asked_for_on_the_right_interface() {
        let commands = "link add a0 type veth peer name a1\nlink add b0 type veth peer name b1\n\
                        link set a0 up\nlink set a1 up\nlink set b0 up\nlink set b1 up\n\
                        addr add 10.1.0.1/24 dev a0\naddr add 10.1.0.3/24 dev b0\n\
                        addr add fd00::1/64 dev a0 nodad\naddr add fd00::3/64 dev b0 nodad\n";
        in_network(commands, || {
            for interface in ["a0", "b0"].map(found_index) {
                for to in ["10.1.0.9", "fd00::9"].map(|text| text.parse().unwrap()) {
                    ask(to, interface);
                    assert!(is_asked_for(to, interface), "{to} by {interface}");
                }
            }
        });
    }

    /// The index of one of our interfaces.
    fn found_index(name: &str) -> u32 {
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        rustix::net::netdevice::name_to_index(socket.unwrap(), name).unwrap()
    }

    /// There is an entry, with or without an answer.
    fn is_asked_for(next: IpAddr, by: u32) -> bool {
        let mut body = vec![family(next), 0, 0, 0];
        body.extend(by.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(attribute(NDA_DST, &bytes_of(next)));
        let mut found = false;
        let told = request(RTM_GETNEIGH, &body, |kind, _| found = kind == RTM_NEWNEIGH);
        told.is_ok() && found
    }

    #[test]
    fn groups_have_the_addresses_that_follow_from_theirs() {
        let of = |text: &str| group(text.parse().unwrap());
        assert_eq!(of("239.129.2.3"), Some([0x01, 0, 0x5e, 0x01, 2, 3]));
        assert_eq!(of("ff02::1:ff00:1234"), Some([0x33, 0x33, 0xff, 0, 0x12, 0x34]));
        assert_eq!(of("10.0.0.1").or(of("fe80::1")), None);
    }

    #[test]
    fn what_is_at_home_has_the_interfaces_own_address() {
        // Loopback's, which has index 1 in every namespace, is all zeroes.
        let found = resolve(IpAddr::V4(Ipv4Addr::LOCALHOST), 1, Duration::ZERO).unwrap();
        assert_eq!(found, Some([0; 6]));
        assert_eq!(vlan(1).unwrap(), None);
    }

    #[test]
    fn a_neighbour_counts_when_it_has_answered() {
        let next: IpAddr = "10.0.0.2".parse().unwrap();
        let mac = [2, 3, 4, 5, 6, 7];
        let entry = |state: u16| {
            let mut body = vec![2, 0, 0, 0, 9, 0, 0, 0];
            body.extend(state.to_ne_bytes());
            body.extend([0, 0]);
            body.extend(attribute(NDA_DST, &[10, 0, 0, 2]));
            body.extend(attribute(NDA_LLADDR, &mac));
            body
        };
        for (state, expected) in [(2, Some(mac)), (4, Some(mac)), (0x80, Some(mac)), (1, None)] {
            assert_eq!(parse_neighbour(&entry(state), next, 9), expected, "{state:#x}");
        }
        let stale = entry(4);
        assert_eq!(parse_neighbour(&entry(0x20), next, 9), None, "failed");
        assert_eq!(parse_neighbour(&stale, next, 8), None, "another interface's");
        assert_eq!(parse_neighbour(&stale, "10.0.0.3".parse().unwrap(), 9), None);
        for end in 0..stale.len() - 2 {
            assert_eq!(parse_neighbour(&stale[..end], next, 9), None);
        }
    }

    #[test]
    fn a_route_leads_home_or_to_the_next_one() {
        let to: IpAddr = "10.9.9.9".parse().unwrap();
        let route = |kind: u8, rest: &[Vec<u8>]| {
            let mut body = vec![2, 32, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0];
            body.extend(rest.concat());
            body
        };
        let by = attribute(RTA_OIF, &7_u32.to_ne_bytes());
        let gateway = attribute(RTA_GATEWAY, &[10, 0, 0, 1]);
        assert_eq!(parse_route(&route(2, std::slice::from_ref(&by)), to), Some(NextHop::Home));
        assert_eq!(parse_route(&route(1, std::slice::from_ref(&by)), to), Some(NextHop::By(to, 7)));
        let far = route(1, &[gateway, by]);
        assert_eq!(parse_route(&far, to), Some(NextHop::By("10.0.0.1".parse().unwrap(), 7)));
        assert_eq!(parse_route(&route(7, &[]), to), None);
        (0..12).for_each(|end| assert_eq!(parse_route(&far[..end], to), None));
    }

    #[test]
    fn a_vlan_says_its_number() {
        let data = attribute(IFLA_INFO_DATA | 0x8000, &attribute(IFLA_VLAN_ID, &[5, 0]));
        let named = |name: &[u8]| [attribute(IFLA_INFO_KIND, name), data.clone()].concat();
        assert_eq!(parse_vlan(&named(b"vlan\0")), Some(5));
        assert_eq!(parse_vlan(&named(b"veth\0")), None);
        let mut link = vec![0, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        link.extend(attribute(IFLA_ADDRESS, &[1, 2, 3, 4, 5, 6]));
        link.extend(attribute(IFLA_LINKINFO, &named(b"vlan\0")));
        let expected = Link { index: 3, mac: Some([1, 2, 3, 4, 5, 6]), vlan: Some(5) };
        assert_eq!(parse_link(&link), Some(expected));
    }
}
