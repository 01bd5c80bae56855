use super::*;
use omniverb_tenancy::{Adoption, Datapath};

fn set(text: &str) -> ObjectSet {
    serde_json::from_str(text).unwrap()
}

fn policy(all: &ObjectSet, name: &str) -> Policy {
    all.policy(&all.vnic[name], Policy::default(), |tenant| TenantId(tenant.len() as u32))
}

#[test]
fn a_vnics_fields_override_its_policies_and_these_its_tenant() {
    let all = set(r#"{
        "tenant": {"blue": {"adoption": "exact"}},
        "policy": {"slow": {"rate": "8mbit", "burst": "64k"}, "off": {"adoption": "off"},
                   "fast": {"rate": "5gbit", "datapath": "forwarded"}},
        "vnic": {"a": {"tenant": "blue"}, "b": {"tenant": "blue", "policies": ["slow", "off"]},
                 "c": {"policies": ["slow", "fast"], "datapath": "direct", "rate": "none"}}}"#);
    all.check().unwrap();
    let a = policy(&all, "a");
    assert_eq!((a.adoption, a.tenant, a.limit), (Adoption::Exact, TenantId(4), None));
    let b = policy(&all, "b");
    let limit = RateLimit { bits_per_second: 8_000_000, burst_bytes: 65536 };
    assert_eq!((b.adoption, b.limit), (Adoption::Off, Some(limit)));
    let c = policy(&all, "c");
    assert_eq!((c.adoption, c.limit), (Adoption::Trusting, None));
    assert_eq!(c.datapath, Datapath::Direct);
}

#[test]
fn limits_of_groups_hold_beside_those_of_a_vnic() {
    let all = set(r#"{
        "tenant": {"blue": {"rate": "1gbit", "burst": "64k"}, "default": {"rate": "2gbit"},
                   "red": {}},
        "policy": {"each": {"rate": "8mbit"}, "sum": {"rate": "80mbit", "mode": "shared"},
                   "more": {"rate": "90mbit", "mode": "shared"},
                   "none": {"rate": "none", "mode": "shared"}, "silent": {"mode": "shared"}},
        "vnic": {"a": {"tenant": "blue", "policies": ["each", "sum"]},
                 "b": {"tenant": "blue", "rate": "none"},
                 "c": {"policies": ["sum", "more", "silent"]}, "d": {"policies": ["sum", "none"]},
                 "e": {"tenant": "red", "policies": ["sum", "none"]}}}"#);
    all.check().unwrap();
    let shared = |name: &str| {
        let CommonLimits { of_tenant, of_policy } = all.shared_rate(&all.vnic[name]);
        let mbit = |limit: RateLimit| limit.bits_per_second / 1_000_000;
        (of_tenant.map(mbit), of_policy.map(|(name, limit)| (name, mbit(limit))))
    };
    assert_eq!(shared("a"), (Some(1000), Some(("sum".into(), 80))));
    assert_eq!(policy(&all, "a").limit.unwrap().bits_per_second, 8_000_000);
    assert_eq!(shared("b"), (Some(1000), None));
    assert_eq!(shared("c"), (Some(2000), Some(("more".into(), 90))));
    assert_eq!(shared("d"), (Some(2000), None));
    for (name, is_limited) in [("a", true), ("b", true), ("c", true), ("d", true), ("e", false)] {
        assert_eq!(policy(&all, name).is_limited(), is_limited, "{name}");
    }
    assert!(policy(&all, "b").limit.is_none() && policy(&all, "c").limit.is_none());
}

#[test]
fn limits_of_operations_are_given_as_rates_are() {
    let all = set(r#"{
        "tenant": {"blue": {"ops": "1m"}, "red": {"rate": "2gbit"}},
        "policy": {"each": {"ops": "2k"}, "sum": {"ops": "3k", "mode": "shared"},
                   "rate": {"rate": "90mbit", "mode": "shared"},
                   "none": {"ops": "none", "mode": "shared"}, "free": {"ops": "none"}},
        "vnic": {"a": {"tenant": "blue", "policies": ["each", "sum", "rate"]},
                 "b": {"tenant": "red", "policies": ["each", "sum", "none"], "ops": "7/s"},
                 "c": {"policies": ["each", "free"]}, "d": {"policies": ["sum"]}}}"#);
    all.check().unwrap();
    let of = |name: &str| {
        let number = NonZeroU32::get;
        let CommonLimits { of_tenant, of_policy } = all.shared_ops(&all.vnic[name]);
        let of_policy = of_policy.map(|(name, ops)| (name, number(ops)));
        (policy(&all, name).operations.map(number), of_tenant.map(number), of_policy)
    };
    assert_eq!(of("a"), (Some(2000), Some(1_000_000), Some(("sum".into(), 3000))));
    assert_eq!(all.shared_rate(&all.vnic["a"]).of_policy.unwrap().0, "rate");
    assert_eq!(of("b"), (Some(7), None, None));
    assert_eq!(of("c"), (None, None, None));
    assert_eq!(of("d"), (None, None, Some(("sum".into(), 3000))));
    for (name, is_limited) in [("a", true), ("b", true), ("c", false), ("d", true)] {
        assert_eq!(policy(&all, name).is_limited(), is_limited, "{name}");
    }
    for text in ["0", "1001m", "x", "5/m", "100kbit"] {
        let text = format!(r#"{{"tenant": {{"blue": {{"ops": "{text}"}}}}}}"#);
        assert!(serde_json::from_str::<ObjectSet>(&text).is_err(), "{text}");
    }
}

#[test]
fn written_objects_are_read_again() {
    let all = set(r#"{
        "tenant": {"blue": {"adoption": "exact", "rate": "5gbit", "ops": "1.5m"}, "red": {}},
        "policy": {"a": {"rate": "1.5gbit", "burst": "9000", "mode": "each",
                         "faults": "loss=1%,delay=2ms", "datapath": "forwarded",
                         "control_rate": "1500/s", "qp_rate": "none", "queue_pairs": 9}},
        "vnic": {"web": {"tenant": "red", "policies": ["a"], "attach": "/run/netns/web",
                         "ops": "none"}}}"#);
    let text = serde_json::to_string(&all).unwrap();
    assert_eq!(set(&text), all);
    assert!(!text.contains("null"), "{text}");
}

#[test]
fn a_later_policy_sets_control_limits() {
    let all = set(r#"{
        "policy": {"a": {"control_rate": "1k/s", "qp_rate": "20/s", "queue_pairs": 100},
                   "b": {"qp_rate": "none", "queue_pairs": 5}, "c": {"rate": "8mbit"}},
        "vnic": {"one": {"policies": ["a", "c"]}, "both": {"policies": ["a", "b"]},
                 "none": {"policies": ["c"]}}}"#);
    let of = |name: &str| {
        let control = policy(&all, name).control;
        let number = |rate: Option<std::num::NonZeroU32>| rate.map(std::num::NonZeroU32::get);
        (number(control.operations), number(control.queue_pairs_per_second), control.queue_pairs)
    };
    assert_eq!(of("one"), (Some(1000), Some(20), Some(100)));
    assert_eq!(of("both"), (Some(1000), None, Some(5)));
    assert_eq!(of("none"), (None, None, None));
    for text in ["0/s", "1000001/s", "x", "5/m"] {
        let text = format!(r#"{{"policy": {{"a": {{"control_rate": "{text}"}}}}}}"#);
        assert!(serde_json::from_str::<ObjectSet>(&text).is_err(), "{text}");
    }
}

#[test]
fn faults_of_objects_are_named() {
    let error = |text: &str| set(text).check().unwrap_err().to_string();
    for (text, word) in [
        (r#"{"vnic": {"web": {"tenant": "red"}}}"#, r#"vnic "web": there is no tenant "red""#),
        (r#"{"vnic": {"web": {"policies": ["x"]}}}"#, r#"no policy "x""#),
        (r#"{"vnic": {"web": {"attach": "a/b"}}}"#, "neither an absolute path"),
        (r#"{"vnic": {"web": {"attach": "/proc/7/ns/net"}}}"#, "a path in /proc"),
        (r#"{"vnic": {"a": {"attach": "b"}, "b": {}}}"#, r#"where vnic "a" is attached"#),
        (r#"{"vnic": {"web": {"burst": "64k"}}}"#, "needs a rate"),
        (r#"{"policy": {"p": {"rate": "7bit"}}}"#, "8kbit to 1000tbit"),
        (r#"{"tenant": {"blue": {"burst": "64k"}}}"#, "needs a rate"),
        (r#"{"tenant": {"blue": {"rate": "7bit"}}}"#, "8kbit to 1000tbit"),
        (r#"{"tenant": {"": {}}}"#, "a name has"),
        (r#"{"tenant": {"a/b": {}}}"#, "a name has"),
    ] {
        assert!(error(text).contains(word), "{text}: {}", error(text));
    }
    for text in [
        r#"{"vnic": {"web": {"rules": []}}}"#,
        r#"{"policy": {"p": {"mode": "sum"}}}"#,
        r#"{"tenants": {}}"#,
    ] {
        assert!(serde_json::from_str::<ObjectSet>(text).is_err(), "{text}");
    }
}
