//! Tests vNICs that other hosts announce, and keys that come from the cluster.

use super::*;

/// Objects with the tenant blue, which has a virtual network and this key, and vNICs.
fn with_network(folder: &std::path::Path, key: &str, vnics: Value) -> Objects {
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join("key");
    std::fs::write(&path, key.repeat(16)).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let tenant = json!({ "blue": { "key_file": path, "underlay": "192.0.2.1" }, "plain": {} });
    let configured = json!({ "tenant": tenant, "vnic": vnics });
    let state = Some(folder.join("objects.json"));
    Objects::new(Policy::default(), serde_json::from_value(configured).unwrap(), state)
}

/// What the agent of another host announces of a vNIC there.
fn announced(host: u8, address: &str) -> Value {
    let folder = std::env::temp_dir().join(format!("omniverb-peer-{}", std::process::id()));
    let folder = folder.join(format!("{host}-{address}"));
    let vnic = json!({ "web": { "tenant": "blue", "address": address } });
    let mut there = with_network(&folder, "5a", vnic);
    let underlay = json!({ "underlay": format!("192.0.2.{host}") });
    change(&mut there, "set", "tenant", "blue", underlay);
    let (kind, mut row) = there.network_rows(1).next().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(kind, "place");
    let fields = row.as_object_mut().unwrap();
    fields.remove("tenant").zip(fields.remove("address")).unwrap();
    fields.insert("host".into(), format!("h{host}").into());
    row
}

fn put_address(name: &str, fields: &Value) -> Value {
    json!([{ "do": "put", "kind": "address", "name": name, "fields": fields }])
}

#[test]
fn vnics_of_other_hosts_are_known_as_they_are_announced() {
    let folder = std::env::temp_dir().join(format!("omniverb-announced-{}", std::process::id()));
    let local = json!({ "own": { "tenant": "blue", "address": "10.0.0.1" } });
    let mut all = with_network(&folder, "5a", local.clone());
    let seen = |all: &mut Objects| -> Vec<Ipv4Addr> {
        let networks = all.networks(0);
        networks.values().flat_map(|network| network.vnics.keys().copied()).collect()
    };
    let [first, second] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
    let before = all.revision();
    let good = announced(2, "10.0.0.2");
    cluster(&mut all, put_address("blue/10.0.0.2", &good)).unwrap();
    assert_eq!(seen(&mut all), [first, second]);
    assert!(all.revision() > before);
    // It outlives the daemon, and is no vNIC of this host.
    let mut all = with_network(&folder, "5a", local);
    assert_eq!(seen(&mut all), [first, second]);
    let rows: Vec<_> = all.network_rows(0).collect();
    assert_eq!(rows.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), ["network", "place"]);
    assert_eq!((&rows[0].1["tenant"], &rows[1].1["vnic"]), (&"blue".into(), &"own".into()));
    let row = all.rows(0).last().unwrap();
    assert_eq!((&row["kind"], &row["source"]), (&"address".into(), &"cluster".into()));
    // Nothing that was described depends on it: not even on its tenant.
    let delete = json!([{ "do": "delete", "kind": "address", "name": "blue/10.0.0.2" }]);
    let refused = all.change(&json!({ "changes": delete }).to_string()).unwrap_err();
    assert!(refused.contains("their agents"), "{refused}");
    change(&mut all, "create", "vnic", "mine", json!({ "tenant": "blue", "address": "10.0.0.2" }));
    assert_eq!(all.network_rows(0).count(), 3);
    change(&mut all, "delete", "vnic", "mine", json!({}));
    assert_eq!(seen(&mut all), [first, second], "it is known again");
    let plain = serde_json::from_str(r#"{ "tenant": { "plain": {} } }"#).unwrap();
    all.configure(Policy::default(), plain).unwrap();
    assert!(seen(&mut all).is_empty());
    cluster(&mut all, delete).unwrap();
    assert!(all.rows(0).all(|row| row["kind"] != "address"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_a_stranger_announces_is_refused() {
    let folder = std::env::temp_dir().join(format!("omniverb-stranger-{}", std::process::id()));
    let vnics = json!({
        "own": { "tenant": "blue", "address": "10.0.0.1" },
        "far": { "tenant": "blue", "address": "10.0.0.7", "underlay": "192.0.2.7",
                 "qpn_offset": 0x40_0000 } });
    let mut all = with_network(&folder, "5a", vnics);
    let good = announced(2, "10.0.0.2");
    let with = |key: &str, value: Value| {
        let mut fields = good.clone();
        fields[key] = value;
        fields
    };
    let far = announced(7, "10.0.0.7");
    let same_numbers = {
        let mut fields = announced(7, "10.0.0.9");
        fields["qpn_offset"] = 0x40_0000.into();
        fields
    };
    let moved = with("qpn_offset", (good["qpn_offset"].as_u64().unwrap() ^ 0x400).into());
    for (name, fields, word) in [
        ("blue/10.0.0.1", announced(2, "10.0.0.1"), "\"own\" of this host has the address"),
        ("blue/10.0.0.7", far, "\"far\" of this host has the address"),
        ("blue/10.0.0.9", same_numbers, "has some of its QPNs"),
        ("blue/10.0.0.2", announced(1, "10.0.0.2"), "192.0.2.1 is this host's"),
        ("blue/10.0.0.3", good.clone(), "vGID"),
        ("blue/10.0.0.2", moved, "vGID"),
        ("blue/10.0.0.2", with("underlay", "192.0.2.3".into()), "vGID"),
        ("blue/10.0.0.2", with("vgid", "::".into()), "vGID"),
        ("blue/10.0.0.2", with("qpns", 2048.into()), "its proof was not made"),
        ("blue/10.0.0.2", with("proof", "".into()), "its proof was not made"),
        ("blue/10.0.0.2", with("proof", "5a".repeat(15).into()), "its proof was not made"),
        ("blue/10.0.0.2", with("vgid", "no".into()), "IPv6"),
        ("blue/10.0.0.2", with("underlay", "127.0.0.1".into()), "127.0.0.1"),
        ("blue/10.0.0.2", with("underlay", "2001:db8::2".into()), "that of the tenant is of IPv4"),
        ("blue/10.0.0.2", with("qpns", 1000.into()), "no range"),
        ("blue/10.0.0.2", with("qpn_offset", (-1).into()), "u32"),
        ("blue/10.0.0.2", with("colour", "red".into()), "colour"),
        ("blue/10.0.0.2", json!({}), "no names"),
        ("plain/10.0.0.2", good.clone(), "with an underlay"),
        ("red/10.0.0.2", good.clone(), "no tenant"),
        ("blue/10.0.0.02", good.clone(), "a slash"),
    ] {
        let problem = cluster(&mut all, put_address(name, &fields)).unwrap_err();
        assert!(problem.contains(word), "{name}: {problem}");
        assert!(!problem.contains("5a5a"), "{problem}");
    }
    cluster(&mut all, put_address("blue/10.0.0.2", &good)).unwrap();
    // With a new key here, what is announced with the old one is known as before, and may change.
    std::fs::write(folder.join("key"), "77".repeat(16)).unwrap();
    change(&mut all, "create", "tenant", "green", json!({}));
    let renamed = with("vnic", "other".into());
    cluster(&mut all, put_address("blue/10.0.0.2", &renamed)).unwrap();
    std::fs::write(folder.join("key"), "88".repeat(16)).unwrap();
    change(&mut all, "delete", "tenant", "green", json!({}));
    let problem = cluster(&mut all, put_address("blue/10.0.0.2", &good)).unwrap_err();
    assert!(problem.contains("vGID"), "{problem}");
    assert_eq!(all.networks(0).values().next().unwrap().vnics.len(), 3, "it stays");
    // A file that cannot be read is in the way of changes of tenants only.
    std::fs::remove_file(folder.join("key")).unwrap();
    let tenant = json!([{ "do": "put", "kind": "tenant", "name": "green" }]);
    assert!(cluster(&mut all, tenant).unwrap_err().contains("key_file"));
    let delete = json!([{ "do": "delete", "kind": "address", "name": "blue/10.0.0.2" }]);
    cluster(&mut all, delete).unwrap();
    assert_eq!(all.networks(0).values().next().unwrap().vnics.len(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn of_two_announced_vnics_with_one_range_the_first_keeps_it() {
    let folder = std::env::temp_dir().join(format!("omniverb-first-{}", std::process::id()));
    let mut all = with_network(&folder, "5a", json!({}));
    // Two addresses whose numbers are the same by chance: another underlay has them apart.
    let one = announced(2, "10.0.9.9");
    let numbers = one["qpn_offset"].as_u64().unwrap();
    let there = folder.join("other");
    let fields = json!({ "tenant": "blue", "address": "10.0.0.2", "qpn_offset": numbers });
    let mut other = with_network(&there, "5a", json!({ "web": fields }));
    change(&mut other, "set", "tenant", "blue", json!({ "underlay": "192.0.2.2" }));
    let (_, mut two) = other.network_rows(1).next().unwrap();
    let fields = two.as_object_mut().unwrap();
    fields.remove("tenant").zip(fields.remove("address")).unwrap();
    fields.insert("host".into(), "h3".into());
    cluster(&mut all, put_address("blue/10.0.9.9", &one)).unwrap();
    let problem = cluster(&mut all, put_address("blue/10.0.0.2", &two)).unwrap_err();
    assert!(problem.contains("\"blue/10.0.9.9\" has some of its QPNs"), "{problem}");
    let delete = json!([{ "do": "delete", "kind": "address", "name": "blue/10.0.9.9" }]);
    cluster(&mut all, delete).unwrap();
    cluster(&mut all, put_address("blue/10.0.0.2", &two)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_one_tenant_announces_takes_no_numbers_of_another() {
    let folder = std::env::temp_dir().join(format!("omniverb-apart-{}", std::process::id()));
    let mut all = with_network(&folder, "5a", json!({}));
    let one = announced(2, "10.0.9.9");
    // Another tenant says the same place, of which it can prove each word with its own key.
    let there = folder.join("other");
    let fields =
        json!({ "tenant": "blue", "address": "10.0.0.2", "qpn_offset": one["qpn_offset"] });
    let mut other = with_network(&there, "77", json!({ "web": fields }));
    change(&mut other, "set", "tenant", "blue", json!({ "underlay": "192.0.2.2" }));
    let (_, mut two) = other.network_rows(1).next().unwrap();
    let fields = two.as_object_mut().unwrap();
    fields.remove("tenant").zip(fields.remove("address")).unwrap();
    fields.insert("host".into(), "h2".into());
    let red = json!({ "key_file": there.join("key"), "underlay": "192.0.2.1" });
    change(&mut all, "create", "tenant", "red", red);
    cluster(&mut all, put_address("red/10.0.0.2", &two)).unwrap();
    cluster(&mut all, put_address("blue/10.0.9.9", &one)).unwrap();
    let networks = all.networks(0);
    assert_eq!(networks.values().map(|network| network.vnics.len()).collect::<Vec<_>>(), [1, 1]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_key_of_the_cluster_is_in_a_file_of_its_own_and_in_no_object() {
    let folder = std::env::temp_dir().join(format!("omniverb-brought-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let state = folder.join("objects.json");
    let new = || Objects::new(Policy::default(), Set::default(), Some(state.clone()));
    let put = |fields: Value| {
        let change = json!({ "do": "put", "kind": "tenant", "name": "blue", "fields": fields });
        json!([change])
    };
    let key = |digits: &str| json!({ "key": digits.repeat(16), "underlay": "192.0.2.1" });
    let mut all = new();
    cluster(&mut all, put(key("5a"))).unwrap();
    let file = folder.join("objects.json.keys/blue.key");
    let mode = |path: &std::path::Path| {
        std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions()) & 0o777
    };
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "5a".repeat(16));
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    let row = all.rows(0).next().unwrap();
    assert_eq!(row["fields"]["key_file"], file.to_str().unwrap());
    let written = std::fs::read_to_string(folder.join("objects.json.cluster")).unwrap();
    assert!(!written.contains("5a5a") && !row.to_string().contains("5a5a"));
    assert!(!format!("{all:?}").contains("5a5a"));
    // Another one is another generation; the one before stays valid, also if nothing else changed.
    let generation = |all: &Objects| all.keys.generation("blue");
    let first = generation(&all);
    cluster(&mut all, put(key("5a"))).unwrap();
    assert_eq!(generation(&all), first);
    cluster(&mut all, put(key("77"))).unwrap();
    assert!(generation(&all) != first && all.keys.keys("blue").len() == 2);
    assert_eq!(new().keys.keys("blue"), all.keys.keys("blue")[..1]);
    // What is refused changes no file.
    for (fields, word) in [
        (json!({ "key": "5a" }), "32 hexadecimal"),
        (json!({ "key": "zz".repeat(16) }), "32 hexadecimal"),
        (json!({ "key": 7 }), "no text"),
        (json!({ "key": "5a".repeat(16), "key_file": "/x" }), "key_file"),
        (json!({ "key": "5a".repeat(16), "colour": "red" }), "colour"),
        (json!({ "key": "5a".repeat(16), "underlay": "fd00::1" }), "IPv6"),
    ] {
        let problem = cluster(&mut all, put(fields)).unwrap_err();
        assert!(problem.contains(word) && !problem.contains("5a5a"), "{problem}");
    }
    let elsewhere = json!([{ "do": "put", "kind": "tenant", "name": "../x",
        "fields": { "key": "5a".repeat(16) } }]);
    assert!(cluster(&mut all, elsewhere).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "77".repeat(16));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    // Commands have no such field; what one has copied keeps the file.
    let by_command = json!({ "changes": put(key("5a")) }).to_string();
    assert!(all.change(&by_command).unwrap_err().contains("key"));
    change(&mut all, "set", "tenant", "blue", json!({ "adoption": "off" }));
    let delete = json!([{ "do": "delete", "kind": "tenant", "name": "blue" }]);
    cluster(&mut all, delete.clone()).unwrap();
    assert!(file.exists());
    change(&mut all, "delete", "tenant", "blue", json!({}));
    cluster(&mut all, put(key("5a"))).unwrap();
    cluster(&mut all, delete).unwrap();
    assert!(!file.exists());
    // A change that cannot be kept leaves the key of before, and nothing else in the folder.
    cluster(&mut all, put(key("5a"))).unwrap();
    let beside = folder.join("objects.json.cluster.new");
    std::fs::create_dir(&beside).unwrap();
    assert!(cluster(&mut all, put(key("66"))).unwrap_err().contains("cannot write the state file"));
    std::fs::remove_dir(&beside).unwrap();
    let files = || std::fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!((std::fs::read_to_string(&file).unwrap(), files()), ("5a".repeat(16), 1));
    // What a daemon that was killed has left is deleted, unless what is needed is unknown.
    for name in ["blue.key.new", "gone.key"] {
        std::fs::write(file.with_file_name(name), "66".repeat(16)).unwrap();
    }
    std::fs::write(&state, "{").unwrap();
    new();
    assert_eq!(files(), 3);
    std::fs::remove_file(&state).unwrap();
    new();
    assert_eq!((std::fs::read_to_string(&file).unwrap(), files()), ("5a".repeat(16), 1));
    // A command's tenant with another file hides that of the cluster, which stays.
    let other = folder.join("other");
    std::fs::copy(&file, &other).unwrap();
    change(&mut all, "set", "tenant", "blue", json!({ "key_file": other }));
    cluster(&mut all, put(key("5a"))).unwrap();
    assert!(file.exists());
    change(&mut all, "delete", "tenant", "blue", json!({}));
    // Without a state file there is no place for it.
    let problem = cluster(&mut objects("{}"), put(key("5a"))).unwrap_err();
    assert!(problem.contains("no folder"), "{problem}");
    std::fs::remove_dir_all(&folder).unwrap();
}
