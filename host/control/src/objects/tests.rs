mod announced_vnics;
mod container_addresses;

use super::*;
use omniverb_tenancy::Adoption;
use serde_json::{Value, json};
use std::net::Ipv4Addr;

fn objects(configured: &str) -> Objects {
    Objects::new(Policy::default(), serde_json::from_str(configured).unwrap(), None)
}

fn place(name: &str) -> Place<'_> {
    Place { name, alias: None, inode: None }
}

fn change(objects: &mut Objects, verb: &str, kind: &str, name: &str, fields: Value) {
    let one = json!({ "do": verb, "kind": kind, "name": name, "fields": fields });
    objects.change(&json!({ "changes": [one] }).to_string()).unwrap();
}

#[test]
fn a_vnic_has_the_object_that_names_it_or_where_it_is() {
    let mut all = objects(
        r#"{"tenant": {"blue": {}, "red": {}},
        "vnic": {"host": {"tenant": "blue"}, "web": {"tenant": "red", "attach": "vnic-7-abcd"}}}"#,
    );
    let tenant = |all: &mut Objects, id, name| {
        all.policy(VnicId(id), &place(name)).map(|policy| policy.tenant)
    };
    let blue = tenant(&mut all, 1, "host").unwrap();
    let red = tenant(&mut all, 2, "vnic-7-abcd").unwrap();
    assert!(blue != red && blue != TenantId::default() && red != TenantId::default());
    assert_eq!(tenant(&mut all, 3, "vnic-8-abcd"), None);
    assert_eq!((all.tenant_of(VnicId(2)), all.tenant_of(VnicId(3))), ("red", "default"));
    assert_eq!((all.vnic_of("web"), all.name_of(VnicId(1))), (Some(VnicId(2)), Some("host")));
}

#[test]
fn a_path_is_a_namespace_as_long_as_the_object_stays() {
    let path = std::env::temp_dir().join(format!("omniverb-attach-{}", std::process::id()));
    std::fs::write(&path, "").unwrap();
    let configured = json!({ "tenant": { "blue": {} },
        "vnic": { "web": { "tenant": "blue", "attach": path } } });
    let mut all = objects(&configured.to_string());
    let inode = inode_at(path.to_str().unwrap());
    let here = Place { name: "vnic-1-abcd", alias: None, inode };
    let there = Place { inode: Some([0, 1]), ..here.clone() };
    assert!(all.policy(VnicId(2), &there).is_none());
    let tenant = all.policy(VnicId(1), &here).unwrap().tenant;
    std::fs::remove_file(&path).unwrap();
    assert_eq!(all.policy(VnicId(1), &here).unwrap().tenant, tenant, "it does not escape");
    assert!(all.policy(VnicId(3), &here).is_none());
    change(&mut all, "set", "vnic", "web", json!({ "attach": "vnic-2-abcd" }));
    assert!(all.policy(VnicId(1), &here).is_none());
}

#[test]
fn what_is_attached_to_a_container_decides_before_rules() {
    let (vnic, name) = (VnicId(1), "vnic-1-abcd");
    let mut all = objects(r#"{"tenant": {"blue": {}, "red": {}}}"#);
    all.configured.container =
        serde_json::from_str(r#"[{"tenant": "blue", "name": "box"}]"#).unwrap();
    let path = std::env::temp_dir().join(format!("omniverb-container-{}", std::process::id()));
    std::fs::write(&path, "").unwrap();
    let here = Place { name, alias: None, inode: inode_at(path.to_str().unwrap()) };
    let given = |all: &mut Objects| {
        all.policy(vnic, &here);
        all.name_of(vnic).map(str::to_owned)
    };
    let heard = ((vnic, name), Container::default(), (0, false));
    assert!(all.hear_of_container(heard.0, heard.1, heard.2, |_| true));
    assert_eq!(given(&mut all).unwrap(), "box");
    let web = json!({ "attach": path, "tenant": "red" });
    change(&mut all, "create", "vnic", "web", web.clone());
    assert_eq!(given(&mut all).unwrap(), "web");
    change(&mut all, "delete", "vnic", "web", json!({}));
    assert_eq!(given(&mut all).unwrap(), "box");
    // It is there for a namespace to come, as what the rule gave is not.
    change(&mut all, "create", "vnic", "web", web);
    assert_eq!(given(&mut all).unwrap(), "web");
    std::fs::remove_file(&path).unwrap();
    all.forget(vnic).unwrap();
    assert!(all.all.vnic.contains_key("web") && !all.all.vnic.contains_key("box"));
}

#[test]
fn what_describes_a_vnic_is_looked_at_rarely_however_often_it_connects() {
    let mut all = objects("{}");
    let times = [0, 1, 99_999_999, 100_000_000, 100_000_001];
    let due = times.map(|now| all.is_vnic_look_due(VnicId(1), now));
    assert_eq!(due, [true, false, false, true, false]);
    assert!(all.is_vnic_look_due(VnicId(2), 1));
    all.forget(VnicId(1)).unwrap();
    assert_eq!(all.containers.looked_at.len(), 1);
}

#[test]
fn changes_are_made_together_or_not_at_all() {
    let mut all = objects(r#"{"tenant": {"blue": {}}}"#);
    let refused = |all: &mut Objects, changes: Value| {
        all.change(&json!({ "changes": changes }).to_string()).unwrap_err()
    };
    let create = |kind: &str, name: &str, fields: Value| {
        let verb = "create";
        json!({ "do": verb, "kind": kind, "name": name, "fields": fields })
    };
    let good = create("vnic", "a", json!({ "tenant": "blue" }));
    let bad = create("vnic", "b", json!({ "tenant": "red" }));
    assert!(refused(&mut all, json!([good, bad])).contains("no tenant \"red\""));
    assert!(all.rows(1).next().is_none(), "nothing was made");
    change(&mut all, "create", "vnic", "a", json!({ "tenant": "blue", "rate": "8mbit" }));
    assert!(refused(&mut all, json!([good])).contains("exists"));
    assert!(
        refused(&mut all, json!([create("vnic", "c", json!({ "colour": 1 }))])).contains("colour")
    );
    let delete = json!([{ "do": "delete", "kind": "tenant", "name": "blue" }]);
    assert!(refused(&mut all, delete.clone()).contains("in the configuration file"));
    change(&mut all, "set", "vnic", "a", json!({ "rate": null }));
    assert_eq!(all.rows(1).next().unwrap()["fields"], json!({ "tenant": "blue" }));
    change(&mut all, "create", "tenant", "red", json!({ "adoption": "off" }));
    change(&mut all, "set", "vnic", "a", json!({ "tenant": "red" }));
    let delete = json!([{ "do": "delete", "kind": "tenant", "name": "red" }]);
    assert!(refused(&mut all, delete).contains("no tenant \"red\""), "a vNIC is in it");
    let policy = all.policy(VnicId(1), &place("a")).unwrap();
    assert_eq!(policy.adoption, Adoption::Off);
    assert!(refused(&mut all, json!("x")).contains("invalid type"));
}

#[test]
fn another_configuration_is_taken_as_a_whole() {
    let mut all = objects(r#"{"tenant": {"blue": {}}}"#);
    change(&mut all, "create", "vnic", "a", json!({ "tenant": "blue" }));
    let problem = all.configure(Policy::default(), Set::default()).unwrap_err();
    assert!(problem.contains("set at run time") && problem.contains("\"blue\""), "{problem}");
    assert!(all.rows(1).next().is_some());
    let other = serde_json::from_str(r#"{"tenant": {"blue": {"adoption": "off"}}}"#).unwrap();
    all.configure(Policy::default(), other).unwrap();
    assert_eq!(all.policy(VnicId(1), &place("a")).unwrap().adoption, Adoption::Off);
}

#[test]
fn settings_by_command_end_with_their_namespace() {
    let mut all = objects("{}");
    let name = "vnic-7-abcd";
    let limited = |object: &mut VnicObject| object.rate = Some(RateValue(8_000_000));
    all.set_vnic(VnicId(1), name, limited).unwrap();
    assert!(all.policy(VnicId(1), &place(name)).unwrap().limit.is_some());
    all.forget(VnicId(1)).unwrap();
    assert!(all.rows(0).next().is_none());
    all.set_vnic(VnicId(2), "host", limited).unwrap();
    all.forget(VnicId(2)).unwrap();
    assert!(all.rows(0).next().is_some());
}

#[test]
fn a_path_that_cannot_be_looked_at_is_named_once() {
    let mut all = objects(
        r#"{"vnic": {"a": {"attach": "/dev/null/netns"},
        "b": {"attach": "/nothing/here"}, "c": {}}}"#,
    );
    let problems = all.new_problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("vNIC \"a\"") && problems[0].contains("/dev/null/netns"));
    assert!(all.new_problems().is_empty());
    // New vNICs have them looked at once a second.
    let due = [0, 1, 999_999_999, 1_000_000_000, 1_000_000_001].map(|now| all.is_look_due(now));
    assert_eq!(due, [true, false, false, true, false]);
    let row = all.rows(0).next().unwrap();
    assert!(row["problem"].as_str().unwrap().contains("cannot look at"), "{row}");
    assert!(row["attached"].is_null() && all.rows(1).next().unwrap().get("problem").is_none());
}

fn cluster(objects: &mut Objects, changes: Value) -> Result<(), String> {
    objects.change(&json!({ "source": "cluster", "changes": changes }).to_string())
}

#[test]
fn a_command_decides_before_the_cluster_and_this_before_the_configuration() {
    let mut all = objects(r#"{"tenant": {"blue": {"adoption": "exact"}}}"#);
    let put = |kind: &str, name: &str, fields: Value| {
        let verb = "put";
        json!({ "do": verb, "kind": kind, "name": name, "fields": fields })
    };
    let is_off = put("tenant", "blue", json!({ "adoption": "off" }));
    let web = put("vnic", "web", json!({ "tenant": "blue", "rate": "8mbit" }));
    cluster(&mut all, json!([is_off, web])).unwrap();
    assert_eq!(all.rows(0).next().unwrap()["fields"], json!({ "adoption": "off" }));
    assert_eq!(all.rows(0).next().unwrap()["source"], "cluster");
    let delete = |name: &str| json!([{ "do": "delete", "kind": "vnic", "name": name }]);
    let refusal = all.change(&json!({ "changes": delete("web") }).to_string()).unwrap_err();
    assert!(refusal.contains("the cluster's"), "{refusal}");
    // A command's value stays, whatever the cluster says later.
    change(&mut all, "set", "vnic", "web", json!({ "rate": "16mbit" }));
    cluster(&mut all, json!([put("vnic", "web", json!({ "tenant": "blue" }))])).unwrap();
    let row = all.rows(1).next().unwrap();
    assert_eq!((&row["source"], &row["hides"]), (&"command".into(), &"cluster".into()));
    assert_eq!(row["fields"]["rate"], "16000000bit");
    all.change(&json!({ "changes": delete("web") }).to_string()).unwrap();
    let row = all.rows(1).next().unwrap();
    assert_eq!((&row["source"], &row["fields"]), (&"cluster".into(), &json!({"tenant": "blue"})));
    cluster(&mut all, delete("web")).unwrap();
    assert!(all.rows(1).next().is_none() && cluster(&mut all, delete("web")).is_err());
    // Below it stands the configuration.
    cluster(&mut all, json!([{ "do": "delete", "kind": "tenant", "name": "blue" }])).unwrap();
    let row = all.rows(0).next().unwrap();
    assert_eq!(
        (&row["source"], &row["fields"]["adoption"]),
        (&"configuration".into(), &"exact".into())
    );
}

#[test]
fn the_cluster_cannot_take_away_what_a_command_names() {
    let mut all = objects("{}");
    let put = json!([{ "do": "put", "kind": "tenant", "name": "blue" }]);
    cluster(&mut all, put).unwrap();
    change(&mut all, "create", "vnic", "a", json!({ "tenant": "blue" }));
    let delete = json!([{ "do": "delete", "kind": "tenant", "name": "blue" }]);
    assert!(cluster(&mut all, delete).unwrap_err().contains("no tenant \"blue\""));
    let source = json!({ "source": "people", "changes": [] }).to_string();
    assert!(all.change(&source).unwrap_err().contains("people"));
}

#[test]
fn objects_of_a_cluster_outlive_the_daemon_in_a_file_of_their_own() {
    let folder = std::env::temp_dir().join(format!("omniverb-cluster-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("objects.json");
    let new = || Objects::new(Policy::default(), Set::default(), Some(path.clone()));
    let put = json!([{ "do": "put", "kind": "tenant", "name": "blue" }]);
    cluster(&mut new(), put.clone()).unwrap();
    assert!(!path.exists(), "nothing was set by command");
    let again = new();
    assert_eq!(again.rows(0).next().unwrap()["source"], "cluster");
    let beside = folder.join("objects.json.cluster");
    std::fs::write(&beside, "{").unwrap();
    let mut damaged = new();
    assert!(damaged.rows(0).next().is_none() && damaged.problems().count() == 1);
    // An agent has all of it: unlike what was set by command it is written again.
    cluster(&mut damaged, put).unwrap();
    assert!(folder.join("objects.json.cluster.damaged").exists());
    assert!(new().rows(0).next().is_some() && new().problems().count() == 0);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A file that cannot be used may have said of any vNIC that it is another tenant's.
#[test]
fn without_what_was_set_no_two_vnics_are_of_one_tenant() {
    let folder = std::env::temp_dir().join(format!("omniverb-unknown-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("objects.json");
    let new = |configured: &str| {
        let configured = serde_json::from_str(configured).unwrap();
        Objects::new(Policy::default(), configured, Some(path.clone()))
    };
    let tenant = |all: &mut Objects, id, name: &str| {
        all.policy(VnicId(id), &place(name)).map_or(TenantId::default(), |policy| policy.tenant)
    };
    let blue = r#"{ "tenant": { "blue": {} }, "vnic": { "home": { "tenant": "blue" } } }"#;
    change(&mut new(blue), "create", "vnic", "web", json!({ "tenant": "blue" }));
    // Its tenant has gone from the configuration; the file is torn; a cluster's is.
    let text = std::fs::read(&path).unwrap();
    for (torn, beside, configured) in [(0, "", r#"{}"#), (9, "", blue), (9, ".cluster", blue)] {
        std::fs::write(&path, &text).unwrap();
        let torn_path = folder.join(format!("objects.json{beside}"));
        if torn != 0 {
            std::fs::write(&torn_path, &text[..torn]).unwrap();
        }
        let mut all = new(configured);
        assert_eq!(all.problems().count(), 1);
        let [a, b] = [1, 2].map(|n| tenant(&mut all, n, &format!("vnic-{n}-abcd")));
        assert!(a != b && a != TenantId::default() && b != TenantId::default(), "{a:?} {b:?}");
        let known = tenant(&mut all, 3, "home");
        assert!(known != a && known != b);
        // As soon as the file is away, what nothing describes is one owner's again.
        std::fs::remove_file(&torn_path).unwrap();
        all.configure(Policy::default(), serde_json::from_str(configured).unwrap()).unwrap();
        assert_eq!(tenant(&mut all, 1, "vnic-1-abcd"), TenantId::default());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn two_vnics_of_a_cluster_cannot_have_one_address_and_tenants_have_keys_of_their_own() {
    let folder = std::env::temp_dir().join(format!("omniverb-places-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let key = |name: &str, digit: &str| {
        let path = folder.join(name);
        std::fs::write(&path, digit.repeat(32)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        path
    };
    let (one, other) = (key("one", "1"), key("other", "2"));
    let configured = json!({ "tenant": {
        "blue": { "key_file": one, "underlay": "192.0.2.1" }, "red": {},
        "green": { "key_file": other, "underlay": "192.0.2.1" } } });
    let mut all = objects(&configured.to_string());
    let put = |name: &str, fields: Value| {
        let change = json!({ "do": "put", "kind": "vnic", "name": name, "fields": fields });
        json!([change])
    };
    let at = |last: u8| json!({ "tenant": "blue", "address": format!("10.0.0.{last}") });
    cluster(&mut all, put("a", at(1))).unwrap();
    let refused = cluster(&mut all, put("b", at(1))).unwrap_err();
    assert!(refused.contains("has the address 10.0.0.1"), "{refused}");
    // So a vNIC that changes its tenant is never left in the network of the one before.
    cluster(&mut all, put("a", json!({ "tenant": "red" }))).unwrap();
    assert!(all.policy(VnicId(1), &place("a")).is_some() && all.place(VnicId(1)).is_none());
    // The key of another tenant, by a copy of its file, also while that one changes its own.
    std::fs::copy(&one, &other).unwrap();
    for digit in ["1", "3"] {
        let _ = key("one", digit);
        let tenant = json!([{ "do": "put", "kind": "tenant", "name": "c" }]);
        let problem = cluster(&mut all, tenant).unwrap_err();
        assert!(problem.contains("the key of tenant"), "{problem}");
        assert!(!problem.contains("1111"));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_was_set_for_a_vnic_goes_with_it_whatever_is_wrong_with_files() {
    let key = std::env::temp_dir().join(format!("omniverb-forget-{}", std::process::id()));
    std::fs::write(&key, "1".repeat(32)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, mode).unwrap();
    let mut all = objects(&json!({ "tenant": { "blue": { "key_file": key } } }).to_string());
    all.set_vnic(VnicId(1), "vnic-1-abcd", |object| object.tenant = Some("blue".into())).unwrap();
    assert_eq!(all.rows(1).next().unwrap()["name"], "vnic-1-abcd");
    std::fs::remove_file(&key).unwrap();
    all.forget(VnicId(1)).unwrap();
    assert!(all.rows(1).next().is_none());
}

const VIRTUAL: &str = r#"{
    "tenant": { "blue": { "key_file": "/nowhere", "underlay": "192.0.2.1" }, "green": {} },
    "vnic": { "a": { "tenant": "blue", "address": "10.0.0.1" },
              "b": { "tenant": "blue", "address": "10.0.0.ADDRESS" },
              "c": { "tenant": "green" } } }"#;

#[test]
fn a_vnic_of_a_virtual_network_without_a_place_in_it_has_no_device() {
    // The daemon starts with what it is given. Nothing of it is a place if two would have one.
    for (address, lacks) in [("2", false), ("1", true)] {
        let mut all = objects(&VIRTUAL.replace("ADDRESS", address));
        for (id, name, is_virtual) in [(1, "a", true), (2, "b", true), (3, "c", false)] {
            let vnic = VnicId(id);
            all.policy(vnic, &place(name)).unwrap();
            assert_eq!(all.network_of(vnic), is_virtual.then_some("blue"));
            assert_eq!(all.lacks_place(vnic), lacks && is_virtual, "{name}");
            assert_eq!(all.place(vnic).is_some(), !lacks && is_virtual, "{name}");
        }
        assert_eq!(all.unplaced().is_some(), lacks);
        assert!(!all.lacks_place(VnicId(4)), "nothing describes it");
    }
}

#[test]
fn no_change_leaves_a_vnic_of_a_virtual_network_flat() {
    let mut all = objects(&VIRTUAL.replace("ADDRESS", "2").replace("/nowhere", "/dev/null"));
    all.policy(VnicId(1), &place("a")).unwrap();
    let refused = |all: &mut Objects, source: &str, kind: &str, name: &str, fields: Value| {
        let one = json!({ "do": "put", "kind": kind, "name": name, "fields": fields });
        all.change(&json!({ "source": source, "changes": [one] }).to_string()).unwrap_err()
    };
    let network = json!({ "key_file": "/nowhere", "underlay": "192.0.2.9" });
    for source in ["command", "cluster"] {
        let problem = refused(&mut all, source, "tenant", "green", network.clone());
        assert!(problem.contains("vnic \"c\"") && problem.contains("address in it"), "{problem}");
        let problem = refused(&mut all, source, "vnic", "d", json!({ "tenant": "blue" }));
        assert!(problem.contains("say the vNIC's address"), "{problem}");
    }
    assert!(!all.lacks_place(VnicId(1)) && all.place(VnicId(1)).is_some());
}

#[test]
fn a_place_that_is_another_vnics_is_refused_of_a_cluster_too() {
    let folder = std::env::temp_dir().join(format!("omniverb-elsewhere-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let key = folder.join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text = VIRTUAL.replace("ADDRESS", "2").replace("/nowhere", key.to_str().unwrap());
    let mut all = objects(&text);
    let fields = json!({ "tenant": "blue", "address": "10.0.0.1" });
    let put = json!([{ "do": "put", "kind": "vnic", "name": "d", "fields": fields }]);
    assert!(cluster(&mut all, put).unwrap_err().contains("has the address 10.0.0.1"));
    // One that is said to be on another host is none of this host any more.
    all.policy(VnicId(1), &place("a")).unwrap();
    let elsewhere = json!({ "underlay": "192.0.2.7", "qpn_offset": 0x40_0000 });
    change(&mut all, "set", "vnic", "a", elsewhere);
    assert!(all.place(VnicId(1)).is_none() && all.name_of(VnicId(1)).is_none());
    std::fs::remove_dir_all(&folder).unwrap();
}
