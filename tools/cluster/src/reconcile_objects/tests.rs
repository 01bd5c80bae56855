use super::*;
use proptest::prelude::*;

fn id(kind: Kind, name: &str) -> ObjectId {
    ObjectId::new(kind, name)
}

fn fields(value: Value) -> Fields {
    value.as_object().cloned().unwrap_or_default()
}

/// A daemon: what it has, and the rules by which it refuses.
#[derive(Default)]
struct Daemon {
    objects: BTreeMap<ObjectId, Fields>,
    calls: usize,
}

impl Daemon {
    fn call(&mut self, text: &str) -> Result<(), CallError> {
        self.calls += 1;
        let call: Value = serde_json::from_str(text).unwrap();
        assert_eq!(call["source"], "cluster");
        let mut after = self.objects.clone();
        for change in call["changes"].as_array().unwrap() {
            let kind = Kind::from_word(change["kind"].as_str().unwrap()).unwrap();
            let id = id(kind, change["name"].as_str().unwrap());
            match change["do"].as_str().unwrap() {
                "put" => drop(after.insert(id, fields(change["fields"].clone()))),
                _ if after.remove(&id).is_none() => return refuse("it is not there"),
                _ => {}
            }
        }
        let mut places = BTreeSet::new();
        for (id, fields) in &after {
            if fields.contains_key("bad") {
                return refuse("bad");
            }
            if id.kind != Kind::Vnic {
                continue;
            }
            let text = |key| fields.get(key).and_then(Value::as_str).unwrap_or(&id.name).to_owned();
            let tenant = text("tenant");
            if fields.contains_key("tenant")
                && !after.contains_key(&self::id(Kind::Tenant, &tenant))
            {
                return refuse("there is no such tenant");
            }
            if !places.insert(text("attach")) {
                return refuse("another one is attached there");
            }
        }
        self.objects = after;
        Ok(())
    }
}

fn refuse(why: &str) -> Result<(), CallError> {
    Err(CallError::Refused(why.into()))
}

fn wanted(objects: &[(Kind, &str, Value)]) -> WantedObjects {
    let one = |(kind, name, value): &(Kind, &str, Value)| {
        (id(*kind, name), Wanted::Fields(fields(value.clone())))
    };
    objects.iter().map(one).collect()
}

fn reach(wanted: &WantedObjects, present: &mut Present, daemon: &mut Daemon) -> Outcome {
    make(plan(wanted, present), 4000, present, |text| daemon.call(text)).unwrap()
}

#[test]
fn named_objects_are_made_first_and_deleted_last() {
    let (mut daemon, mut present) = (Daemon::default(), Present::default());
    let all = wanted(&[
        (Kind::Vnic, "web", json!({ "tenant": "blue" })),
        (Kind::Tenant, "blue", json!({})),
    ]);
    assert_eq!(reach(&all, &mut present, &mut daemon).made, 2);
    assert!(plan(&all, &present).is_empty());
    let other = wanted(&[
        (Kind::Vnic, "web", json!({ "tenant": "red" })),
        (Kind::Tenant, "red", json!({})),
    ]);
    assert_eq!(reach(&other, &mut present, &mut daemon).made, 3);
    assert_eq!(reach(&WantedObjects::new(), &mut present, &mut daemon).made, 2);
    assert!(daemon.objects.is_empty());
}

#[test]
fn vnics_exchange_their_places() {
    let (mut daemon, mut present) = (Daemon::default(), Present::default());
    let of = |a: &str, b: &str| {
        wanted(&[
            (Kind::Vnic, "a", json!({ "attach": a })),
            (Kind::Vnic, "b", json!({ "attach": b })),
            (Kind::Vnic, "c", json!({ "bad": true })),
        ])
    };
    for (a, b) in [("x", "y"), ("y", "x")] {
        let outcome = reach(&of(a, b), &mut present, &mut daemon);
        assert_eq!(outcome.refused.len(), 1, "{outcome:?}");
        assert_eq!(daemon.objects[&id(Kind::Vnic, "a")]["attach"], a);
    }
}

#[test]
fn a_held_object_stays() {
    let (mut daemon, mut present) = (Daemon::default(), Present::default());
    let mut all = wanted(&[(Kind::Vnic, "a", json!({})), (Kind::Vnic, "b", json!({}))]);
    reach(&all, &mut present, &mut daemon);
    all.insert(id(Kind::Vnic, "a"), Wanted::Held);
    assert!(plan(&all, &present).is_empty());
}

#[test]
fn a_daemon_that_is_known_by_names_only_is_given_all_fields() {
    let all = wanted(&[(Kind::Vnic, "a", json!({}))]);
    let present = Present { names: [id(Kind::Vnic, "a")].into(), given: BTreeMap::new() };
    assert_eq!(plan(&all, &present).len(), 1);
}

#[test]
fn an_object_too_large_for_a_call_is_refused_alone() {
    let (mut daemon, mut present) = (Daemon::default(), Present::default());
    let long = "x".repeat(5000);
    let all = wanted(&[(Kind::Policy, "a", json!({ "f": long })), (Kind::Policy, "b", json!({}))]);
    let outcome = reach(&all, &mut present, &mut daemon);
    assert!(outcome.refused[&id(Kind::Policy, "a")].contains("too large"));
    assert_eq!((outcome.made, daemon.calls), (1, 1));
}

#[test]
fn a_lost_daemon_ends_the_changes_and_made_ones_are_noted() {
    let mut present = Present::default();
    let all = wanted(&[(Kind::Policy, "a", json!({})), (Kind::Policy, "b", json!({}))]);
    let mut calls = 0;
    let lost = make(plan(&all, &present), 100, &mut present, |_| {
        calls += 1;
        if calls == 1 { Ok(()) } else { Err(CallError::Lost("gone".into())) }
    });
    assert_eq!((lost, present.names.len()), (Err("gone".into()), 1));
}

fn some_objects() -> impl Strategy<Value = WantedObjects> {
    let object = (0..3usize, 0..4u8, 0..4u8, 0..4u8, any::<bool>(), 0..12u8);
    proptest::collection::vec(object, 0..12).prop_map(|all| {
        let one = |(kind, name, tenant, place, is_free, bad): (usize, u8, u8, u8, bool, u8)| {
            let mut value = json!({});
            if kind == 2 {
                value["attach"] = format!("p{place}").into();
                if !is_free {
                    value["tenant"] = format!("n{tenant}").into();
                }
            }
            if bad == 0 {
                value["bad"] = true.into();
            }
            (id(Kind::ALL[kind], &format!("n{name}")), Wanted::Fields(fields(value)))
        };
        all.into_iter().map(one).collect()
    })
}

proptest! {
    /// Whatever was there before: what is refused is named, and all else is as it is wanted.
    #[test]
    fn reachable_states_are_reached(steps in proptest::collection::vec(some_objects(), 1..5)) {
        let (mut daemon, mut present) = (Daemon::default(), Present::default());
        for wanted in steps {
            let outcome = reach(&wanted, &mut present, &mut daemon);
            let names: BTreeSet<ObjectId> = daemon.objects.keys().cloned().collect();
            prop_assert_eq!(&names, &present.names);
            for (id, object) in &wanted {
                let Wanted::Fields(fields) = object else { continue };
                let is_there = daemon.objects.get(id) == Some(fields);
                prop_assert!(is_there || outcome.refused.contains_key(id), "{}", id);
            }
            for id in daemon.objects.keys().filter(|id| !wanted.contains_key(*id)) {
                prop_assert!(outcome.refused.contains_key(id), "{} was not deleted", id);
            }
        }
        // From nothing wanted nothing remains.
        reach(&WantedObjects::new(), &mut present, &mut daemon);
        prop_assert!(daemon.objects.is_empty());
    }
}
