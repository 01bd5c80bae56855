//! The Ethernet address behind an address vector, for programs that write frames themselves.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use omniverb_abi::{ibv_ah_attr, ibv_context};
use omniverb_sys::neighbour_table::{self, Mac};
use omniverb_terms::{Errno, Gid};

use super::context::ContextShell;
use crate::refusal_log::refused;

/// How long a neighbour that is not known yet may take to answer, as rdma-core waits.
const PATIENCE: Duration = Duration::from_secs(3);
/// What a VLAN is whose number is not one: there is none.
const NO_VLAN: u16 = 0xffff;

/// The address of a GID. Groups of IPv4 have a form of their own beside the usual one.
fn address(gid: Gid) -> IpAddr {
    match gid.bytes() {
        [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => {
            Ipv4Addr::new(a, b, c, d).into()
        }
        _ => gid.address(),
    }
}

/// Where frames go that packets to this address are in, and in which VLAN (`vid` may be null;
/// 0xffff: in none). Asks the kernel of this network namespace, and has it ask the neighbour.
/// `-EINVAL`: no such GID of ours. `-EHOSTUNREACH`: no way, or no answer.
///
/// # Safety
/// `context` is open, `attr` valid, `mac` has six bytes, `vid` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut Mac,
    vid: *mut u16,
) -> c_int {
    // SAFETY: the caller's promise.
    let (asked, shell) = unsafe { (*attr, ContextShell::of(context)) };
    let index = usize::from(asked.grh.sgid_index);
    let source = shell.gid_entry(index).filter(|entry| asked.port_num == 1 && entry.ifindex != 0);
    let Some(source) = source else {
        let why = "sgid_index names no GID of this device, or the port is not 1";
        return -refused!(Errno::EINVAL, "ibv_resolve_eth_l2_from_gid: {why}").raw();
    };
    let destination = address(Gid::new(asked.grh.dgid.raw));
    match neighbour_table::resolve(destination, source.ifindex, PATIENCE) {
        Ok(Some(found)) => {
            // SAFETY: the caller's promise.
            unsafe {
                mac.write(found);
                if let Some(vid) = vid.as_mut() {
                    *vid = neighbour_table::vlan(source.ifindex).ok().flatten().unwrap_or(NO_VLAN);
                }
            }
            0
        }
        _ => {
            let why = "no way to it by that interface, or no answer";
            let what = "ibv_resolve_eth_l2_from_gid";
            -refused!(Errno::EHOSTUNREACH, "{what}: {destination}: {why}").raw()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_ipv4_are_known_in_both_forms() {
        let of = |text: &str| address(Gid::from(text.parse::<IpAddr>().unwrap()));
        assert_eq!(of("ff0e::ffff:239.1.2.3"), of("239.1.2.3"));
        assert_eq!(of("ff0e::1:239.1.2.3").to_string(), "ff0e::1:ef01:203");
        assert_eq!(of("fe80::1").to_string(), "fe80::1");
    }
}
