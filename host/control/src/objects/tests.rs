use super::*;
use omniverb_tenancy::Adoption;

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
    assert!(all.row(1).is_none(), "nothing was made");
    change(&mut all, "create", "vnic", "a", json!({ "tenant": "blue", "rate": "8mbit" }));
    assert!(refused(&mut all, json!([good])).contains("exists"));
    assert!(
        refused(&mut all, json!([create("vnic", "c", json!({ "colour": 1 }))])).contains("colour")
    );
    let delete = json!([{ "do": "delete", "kind": "tenant", "name": "blue" }]);
    assert!(refused(&mut all, delete.clone()).contains("in the configuration file"));
    change(&mut all, "set", "vnic", "a", json!({ "rate": null }));
    assert_eq!(all.row(1).unwrap()["fields"], json!({ "tenant": "blue" }));
    change(&mut all, "create", "tenant", "red", json!({ "adoption": "off" }));
    change(&mut all, "set", "vnic", "a", json!({ "tenant": "red" }));
    let delete = json!([{ "do": "delete", "kind": "tenant", "name": "red" }]);
    assert!(refused(&mut all, delete).contains("no tenant \"red\""), "somebody is in it");
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
    assert!(all.row(1).is_some());
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
    assert!(all.row(0).is_none());
    all.set_vnic(VnicId(2), "host", limited).unwrap();
    all.forget(VnicId(2)).unwrap();
    assert!(all.row(0).is_some());
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
    let row = all.row(0).unwrap();
    assert!(row["problem"].as_str().unwrap().contains("cannot look at"), "{row}");
    assert!(row["attached"].is_null() && all.row(1).unwrap().get("problem").is_none());
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
    assert_eq!(all.row(0).unwrap()["fields"], json!({ "adoption": "off" }));
    assert_eq!(all.row(0).unwrap()["source"], "cluster");
    let delete = |name: &str| json!([{ "do": "delete", "kind": "vnic", "name": name }]);
    let refusal = all.change(&json!({ "changes": delete("web") }).to_string()).unwrap_err();
    assert!(refusal.contains("the cluster's"), "{refusal}");
    // A command's value stays, whatever the cluster says later.
    change(&mut all, "set", "vnic", "web", json!({ "rate": "16mbit" }));
    cluster(&mut all, json!([put("vnic", "web", json!({ "tenant": "blue" }))])).unwrap();
    let row = all.row(1).unwrap();
    assert_eq!((&row["source"], &row["hides"]), (&"command".into(), &"cluster".into()));
    assert_eq!(row["fields"]["rate"], "16000000bit");
    all.change(&json!({ "changes": delete("web") }).to_string()).unwrap();
    let row = all.row(1).unwrap();
    assert_eq!((&row["source"], &row["fields"]), (&"cluster".into(), &json!({"tenant": "blue"})));
    cluster(&mut all, delete("web")).unwrap();
    assert!(all.row(1).is_none() && cluster(&mut all, delete("web")).is_err());
    // Below it stands the configuration.
    cluster(&mut all, json!([{ "do": "delete", "kind": "tenant", "name": "blue" }])).unwrap();
    let row = all.row(0).unwrap();
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
    assert_eq!(again.row(0).unwrap()["source"], "cluster");
    let beside = folder.join("objects.json.cluster");
    std::fs::write(&beside, "{").unwrap();
    let mut damaged = new();
    assert!(damaged.row(0).is_none() && damaged.problems().count() == 1);
    // An agent has all of it: unlike what was set by command it is written again.
    cluster(&mut damaged, put).unwrap();
    assert!(folder.join("objects.json.cluster.damaged").exists());
    assert!(new().row(0).is_some() && new().problems().count() == 0);
    std::fs::remove_dir_all(&folder).unwrap();
}
