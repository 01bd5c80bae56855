//! Applies an operator's settings to a vNIC's policy, and shows them.

use crate::objects::{
    AdoptionValue, DatapathValue, FaultsValue, OpsValue, RateValue, SizeValue, VnicObject,
};
use omniverb_session::operator::{
    DATAPATH_DIRECT, DATAPATH_FORWARDED, SET_ADOPTION, SET_BURST, SET_DATAPATH, SET_FAULTS,
    SET_OPS, SET_RATE, SetVnic, VnicChanged,
};
use omniverb_session::tc_units::{OPS_MAX, burst_for};
use omniverb_tenancy::{Adoption, Datapath, Policy, RateLimit, SharedLimit};
use omniverb_terms::Errno;
use std::num::NonZeroU32;

/// A limited or faulty vNIC is forwarded whatever was said.
pub(crate) fn datapath_name(policy: Policy) -> &'static str {
    match policy.datapath {
        Datapath::Direct if !policy.is_limited() && policy.faults.is_none() => "direct",
        _ => "forwarded",
    }
}

/// A policy with an operator's changes.
pub(crate) fn changed(mut policy: Policy, m: &SetVnic) -> Result<Policy, Errno> {
    let known = SET_RATE | SET_BURST | SET_DATAPATH | SET_FAULTS | SET_ADOPTION | SET_OPS;
    if m.what == 0 || m.what & !known != 0 {
        return Err(Errno::EINVAL);
    }
    if m.what & SET_DATAPATH != 0 {
        policy.datapath = match m.datapath {
            DATAPATH_DIRECT => Datapath::Direct,
            DATAPATH_FORWARDED => Datapath::Forwarded,
            _ => return Err(Errno::EINVAL),
        };
    }
    if m.what & SET_ADOPTION != 0 {
        policy.adoption = Adoption::from_code(m.adoption).ok_or(Errno::EINVAL)?;
    }
    if m.what & SET_RATE != 0 {
        let bits_per_second = m.bits_per_second;
        policy.limit = match bits_per_second {
            0 => None,
            _ => Some(RateLimit { bits_per_second, burst_bytes: burst_for(bits_per_second) }),
        };
    }
    if m.what & SET_BURST != 0 {
        let limit = policy.limit.as_mut().ok_or(Errno::EINVAL)?;
        limit.burst_bytes = match m.burst_bytes {
            0 => burst_for(limit.bits_per_second),
            burst => burst,
        };
    }
    if m.what & SET_OPS != 0 {
        if m.operations_per_second > OPS_MAX {
            return Err(Errno::EINVAL);
        }
        policy.operations = NonZeroU32::new(m.operations_per_second);
    }
    if m.what & SET_FAULTS != 0 {
        policy.faults = m.faults.checked().map_err(|_| Errno::EINVAL)?;
    }
    if policy.limit.is_some_and(|limit| !limit.is_sensible()) {
        return Err(Errno::EINVAL);
    }
    Ok(policy)
}

/// Writes an operator's changes into a vNIC's object.
pub(crate) fn set_fields(object: &mut VnicObject, policy: &Policy, m: &SetVnic) {
    if m.what & SET_DATAPATH != 0 {
        object.datapath = Some(DatapathValue(policy.datapath));
    }
    if m.what & SET_ADOPTION != 0 {
        object.adoption = Some(AdoptionValue(policy.adoption));
    }
    if m.what & (SET_RATE | SET_BURST) != 0 {
        object.rate = Some(RateValue(policy.limit.map_or(0, |limit| limit.bits_per_second)));
        object.burst = policy.limit.map(|limit| SizeValue(limit.burst_bytes));
    }
    if m.what & SET_OPS != 0 {
        object.ops = Some(OpsValue(policy.operations.map_or(0, NonZeroU32::get)));
    }
    if m.what & SET_FAULTS != 0 {
        object.faults = Some(FaultsValue(policy.faults));
    }
}

/// The settings that hold now, for an operator.
pub(crate) fn shown(policy: &Policy, direct_links: usize) -> VnicChanged {
    VnicChanged {
        bits_per_second: policy.limit.map_or(0, |limit| limit.bits_per_second),
        burst_bytes: policy.limit.map_or(0, |limit| limit.burst_bytes),
        datapath: match policy.datapath {
            Datapath::Direct => DATAPATH_DIRECT,
            Datapath::Forwarded => DATAPATH_FORWARDED,
        },
        direct_links: u32::try_from(direct_links).unwrap_or(u32::MAX),
        faults: policy.faults.unwrap_or_default(),
        adoption: policy.adoption.code(),
        shares_limit: (policy.shared_limit == SharedLimit::Exists).into(),
        operations_per_second: policy.operations.map_or(0, NonZeroU32::get),
        reserved: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::network_fault_text::Faults;
    use omniverb_session::operator::VNIC_NAME_BYTES;

    #[test]
    fn changes_apply_the_given_fields_only() {
        let nothing = SetVnic {
            name: [0; VNIC_NAME_BYTES],
            what: 0,
            datapath: 0,
            bits_per_second: 0,
            burst_bytes: 0,
            faults: Faults::default(),
            adoption: 0,
            operations_per_second: 0,
        };
        let start = Policy::default();
        let refused = |m: SetVnic| assert_eq!(changed(start, &m), Err(Errno::EINVAL));
        refused(nothing);
        refused(SetVnic { what: 64, ..nothing });
        refused(SetVnic { what: SET_OPS, operations_per_second: OPS_MAX + 1, ..nothing });
        refused(SetVnic {
            what: SET_FAULTS,
            faults: Faults { seed: 1, ..nothing.faults },
            ..nothing
        });
        refused(SetVnic { what: SET_DATAPATH, datapath: 2, ..nothing });
        refused(SetVnic { what: SET_BURST, burst_bytes: 65536, ..nothing });
        refused(SetVnic { what: SET_RATE, bits_per_second: 7, ..nothing });
        refused(SetVnic { what: SET_ADOPTION, adoption: 3, ..nothing });
        let off = SetVnic { what: SET_ADOPTION, adoption: 2, ..nothing };
        assert_eq!(changed(start, &off), Ok(Policy { adoption: Adoption::Off, ..start }));
        let rate = SetVnic { what: SET_RATE, bits_per_second: 20_000_000, ..nothing };
        let limited = changed(start, &rate).unwrap();
        assert_eq!(limited.datapath, Datapath::Direct);
        assert_eq!(datapath_name(limited), "forwarded");
        assert_eq!(limited.limit.unwrap().bits_per_second, 20_000_000);
        let burst = SetVnic { what: SET_BURST, burst_bytes: 9000, ..nothing };
        let limit = changed(limited, &burst).unwrap().limit.unwrap();
        assert_eq!((limit.bits_per_second, limit.burst_bytes), (20_000_000, 9000));
        let ops = SetVnic { what: SET_OPS, operations_per_second: 500, ..nothing };
        let counted = changed(start, &ops).unwrap();
        assert_eq!(counted, Policy { operations: NonZeroU32::new(500), ..start });
        assert_eq!(
            (datapath_name(counted), shown(&counted, 0).operations_per_second),
            ("forwarded", 500)
        );
        assert_eq!(changed(counted, &SetVnic { what: SET_OPS, ..nothing }), Ok(start));
        let none = SetVnic { what: SET_RATE | SET_DATAPATH, datapath: 1, ..nothing };
        let forwarded = changed(limited, &none).unwrap();
        assert_eq!(forwarded, Policy { datapath: Datapath::Forwarded, ..start });
        let words =
            omniverb_session::network_fault_text::faults("loss=1%,delay=1ms").unwrap().unwrap();
        let faults = SetVnic { what: SET_FAULTS, faults: words, ..nothing };
        let faulty = changed(limited, &faults).unwrap();
        assert_eq!(faulty, Policy { faults: Some(words), ..limited });
        assert_eq!(datapath_name(Policy { limit: None, ..faulty }), "forwarded");
        assert_eq!(changed(faulty, &SetVnic { what: SET_FAULTS, ..nothing }), Ok(limited));
    }
}
