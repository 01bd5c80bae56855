//! Virtual GIDs (vGIDs): names of tenants' vNICs that say, to who has the tenant's key, where the
//! vNIC is (DESIGN, section 9).
//!
//! * [`Codec`] makes and reads them with a [`TenantKey`]: no lookup, no table, no message.
//! * [`QpnRanges`] gives each vNIC a range of the host's QPNs of its own. A program counts from
//!   small numbers ([`VirtualQpn`]); packets carry [`PhysicalQpn`]s, offset + virtual number.
#![forbid(unsafe_code)]

mod network_prefixes;
mod qpn_ranges;
mod tenant_key;
mod vgid_cipher;
mod virtual_qpn;

pub use network_prefixes::{UnderlayNetwork, VirtualNetwork};
pub use qpn_ranges::QpnRanges;
pub use tenant_key::{DerivedKey, TenantKey};
pub use vgid_cipher::{
    Codec, Deciphered, Generation, TooWide, VnicAddress, check_networks, is_reserved,
};
pub use virtual_qpn::{PhysicalQpn, QpnOffset, QpnRange, VirtualQpn};
