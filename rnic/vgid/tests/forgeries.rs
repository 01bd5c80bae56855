//! A million vGIDs that were not made for this tenant: none leads anywhere. A try succeeds once in
//! 2^48, or 2^47 while two keys are valid, so that chance is one in 10^8 for all of them together.

use omniverb_terms::Gid;
use omniverb_vgid::{Codec, QpnOffset, TenantKey, UnderlayNetwork, VirtualNetwork, VnicAddress};
use std::net::Ipv4Addr;

const EACH: u32 = 250_000;

/// Not random, but well spread (splitmix64).
struct Spread(u64);

impl Spread {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ (b >> 31)
    }

    fn block(&mut self) -> [u8; 16] {
        (u128::from(self.next()) << 64 | u128::from(self.next())).to_be_bytes()
    }
}

fn codec(key: [u8; 16]) -> Codec {
    Codec::new(&TenantKey::new(key), VirtualNetwork::ANY, UnderlayNetwork::Ipv4).unwrap()
}

fn vnic(random: &mut Spread) -> VnicAddress {
    let granule = 1 + random.next() as u32 % 0xc000;
    VnicAddress {
        virtual_ip: Ipv4Addr::from_bits(random.next() as u32),
        offset: QpnOffset::new(granule * QpnOffset::GRANULE).unwrap(),
        underlay: Ipv4Addr::from_bits(random.next() as u32).into(),
    }
}

/// A tenant whose key was changed a moment ago.
fn mine(random: &mut Spread) -> Codec {
    let mut mine = codec(random.block());
    mine.rotate(&TenantKey::new(random.block()));
    assert_eq!(mine.redundancy(), 47);
    mine
}

#[test]
fn random_ones_lead_nowhere() {
    let mut random = Spread(1);
    let mine = mine(&mut random);
    assert!((0..EACH).all(|_| mine.decipher(Gid::new(random.block())).is_none()));
}

#[test]
fn those_of_another_tenant_lead_nowhere() {
    let mut random = Spread(2);
    let (mine, other) = (mine(&mut random), codec(random.block()));
    for _ in 0..EACH {
        let gid = other.encipher(vnic(&mut random)).unwrap();
        assert_eq!(mine.decipher(gid), None);
    }
}

#[test]
fn changed_ones_lead_nowhere() {
    let mut random = Spread(3);
    let mine = mine(&mut random);
    for n in 0..EACH {
        let genuine = mine.encipher(vnic(&mut random)).unwrap();
        let mut bytes = genuine.bytes();
        if n % 2 == 0 {
            // One bit.
            bytes[n as usize / 2 % 16] ^= 1 << (n / 32 % 8);
        } else {
            // Parts of two genuine ones.
            let other = mine.encipher(vnic(&mut random)).unwrap().bytes();
            let cut = 1 + n as usize % 15;
            bytes[cut..].copy_from_slice(&other[cut..]);
            // By chance they begin or end alike.
            if bytes == genuine.bytes() || bytes == other {
                continue;
            }
        }
        assert_eq!(mine.decipher(Gid::new(bytes)), None, "{n}");
    }
}

#[test]
fn those_of_a_retired_key_lead_nowhere() {
    let mut random = Spread(4);
    let mut mine = mine(&mut random);
    let old = mine.clone();
    mine.rotate(&TenantKey::new(random.block()));
    mine.retire();
    for _ in 0..EACH {
        assert_eq!(mine.decipher(old.encipher(vnic(&mut random)).unwrap()), None);
    }
}
