//! Tests of the virtual addresses that `[[container]]` rules give.

use super::*;
use crate::objects::container_rules::Interface;

const TENANTS: &str = r#"{"tenant": {
    "blue": {"key_file": "/b", "underlay": "127.0.0.1", "address_prefix": "10.0.0.0/16"},
    "red": {"key_file": "/r", "underlay": "127.0.0.1"}, "flat": {}},
    "policy": {"gold": {"underlay": "192.0.2.50"}},
    "vnic": {"web": {"tenant": "red", "address": "10.0.0.1"}}}"#;

/// The path of a file with a key, which stays with the temporary files.
fn key_file(name: &str, digits: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("omniverb-{name}-{}", std::process::id()));
    if !path.exists() {
        // Other tests may read it meanwhile.
        let draft = path.with_extension(format!("{:?}", std::thread::current().id()));
        std::fs::write(&draft, digits.repeat(16)).unwrap();
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&draft, &path).unwrap();
    }
    path.to_str().unwrap().to_owned()
}

fn with(rules: &str) -> Objects {
    let tenants = TENANTS
        .replace("\"/b\"", &format!("{:?}", key_file("container-blue", "a1")))
        .replace("\"/r\"", &format!("{:?}", key_file("container-red", "b2")));
    let mut all = objects(&tenants);
    all.configured.container = serde_json::from_str(rules).unwrap();
    all.all.container = all.configured.container.clone();
    all
}

fn container(addresses: &[&str]) -> Container {
    let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
    let name = "eth0".to_owned();
    let interfaces = vec![Interface { name, is_up: true, bridge: None, addresses }];
    Container { interfaces, ..Container::default() }
}

/// Hears of a container, as when its platform is done with it; the address that it has then.
fn hear(all: &mut Objects, vnic: u64, addresses: &[&str], is_watched: bool) -> Option<String> {
    let name = format!("vnic-{vnic}-abcd");
    let mut container = container(addresses);
    container.cgroup = (!is_watched).then(|| "/".to_owned());
    all.hear_of_container((VnicId(vnic), &name), container, (0, is_watched), |_| true);
    let here = Place { name: &name, alias: None, inode: None };
    all.policy(VnicId(vnic), &here);
    all.place(VnicId(vnic)).map(|(_, place)| place.virtual_ip.to_string())
}

#[test]
fn a_container_has_the_address_of_its_interface_in_its_tenants_network() {
    let mut all = with(r#"[{"tenant": "red", "virtual_address": "own"}]"#);
    let before = all.revision();
    assert_eq!(hear(&mut all, 1, &["fe80::1"], true), None, "the rule waits for an address");
    assert!(all.name_of(VnicId(1)).is_none());
    assert_eq!(hear(&mut all, 1, &["fe80::1", "10.0.0.2"], true).as_deref(), Some("10.0.0.2"));
    assert!(all.take_new_places() && !all.take_new_places() && all.revision() > before);
    // What is described has it, or another container.
    assert_eq!(hear(&mut all, 2, &["10.0.0.1"], true), None);
    assert!(all.lacks_place(VnicId(2)), "it has no device");
    assert_eq!(hear(&mut all, 3, &["10.0.0.2"], true), None);
    // It stays with what it has; the other one gets it when it is free.
    assert_eq!(hear(&mut all, 1, &["10.0.0.9"], true).as_deref(), Some("10.0.0.2"));
    all.forget(VnicId(1)).unwrap();
    assert!(all.take_new_places());
    assert_eq!(hear(&mut all, 3, &["10.0.0.2"], true).as_deref(), Some("10.0.0.2"));
    // A process comes before the address does.
    assert_eq!(hear(&mut all, 4, &[], false), None);
    assert!(all.lacks_place(VnicId(4)));
    assert_eq!(hear(&mut all, 4, &["10.0.0.4"], true).as_deref(), Some("10.0.0.4"));
    // What operators change is not refused for the sake of containers, and comes before them.
    change(&mut all, "create", "vnic", "later", json!({ "tenant": "red", "address": "10.0.0.4" }));
    all.policy(VnicId(4), &Place { name: "vnic-4-abcd", alias: None, inode: None });
    assert!(all.place(VnicId(4)).is_none() && all.lacks_place(VnicId(4)));
    assert_eq!(all.places.place("later").unwrap().1.virtual_ip.to_string(), "10.0.0.4");
}

#[test]
fn containers_have_different_addresses_of_a_prefix_and_the_same_after_a_restart() {
    let rules = r#"[{"tenant": "blue", "virtual_address": "10.0.7.0/29"}]"#;
    let mut all = with(rules);
    let given: Vec<_> = (1..=6).map(|vnic| hear(&mut all, vnic, &[], false).unwrap()).collect();
    let mut sorted = given.clone();
    sorted.sort();
    let expected: Vec<_> = (1..=6).map(|last| format!("10.0.7.{last}")).collect();
    assert_eq!(sorted, expected);
    assert_eq!(hear(&mut all, 7, &[], false), None, "none is left");
    all.forget(VnicId(3)).unwrap();
    assert_eq!(hear(&mut all, 7, &[], false), Some(given[2].clone()));
    let mut next = with(rules);
    for (vnic, address) in (1..=6).zip(&given) {
        assert_eq!(hear(&mut next, vnic, &[], false).as_ref(), Some(address));
    }
}

#[test]
fn rules_that_cannot_give_an_address_are_refused() {
    let problem = |rule: &str| {
        let all = with(&format!("[{rule}]"));
        all.all
            .check()
            .err()
            .map(|error| error.to_string())
            .or_else(|| VirtualPlaces::of(&all.all, &VirtualPlaces::default()).err())
    };
    for rule in [
        r#"{"tenant": "blue", "virtual_address": "own"}"#,
        r#"{"tenant": "blue", "virtual_address": "10.0.0.0/16"}"#,
        r#"{"tenant": "red", "virtual_address": "10.9.0.7"}"#,
        r#"{"tenant": "flat"}"#,
    ] {
        assert_eq!(problem(rule), None, "{rule}");
    }
    for (rule, words) in [
        (r#"{"tenant": "blue"}"#, "say a virtual_address"),
        (r#"{"tenant": "flat", "virtual_address": "own"}"#, "a tenant with an underlay"),
        (r#"{"virtual_address": "own"}"#, "a tenant with an underlay"),
        (r#"{"tenant": "green", "virtual_address": "own"}"#, "no tenant \"green\""),
        (r#"{"tenant": "blue", "virtual_address": "10.0.0.0/15"}"#, "address_prefix"),
        (r#"{"tenant": "flat", "policies": ["gold"]}"#, "the vNIC's tenant needs one"),
        (r#"{"tenant": "blue", "virtual_address": "own", "policies": ["gold"]}"#, "is of one host"),
    ] {
        let found = problem(rule).unwrap_or_default();
        assert!(found.contains(words), "{rule}: {found:?}");
    }
}
