//! The types agree with the text of the interface.

use corebeat_wire::{Call, Refusal, host, service};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use zlink_idl::{CustomType, Field, Interface, Type};

/// Whether a value has this type.
fn has_type(value: &Value, of: &Type<'_>, interface: &Interface<'_>) -> bool {
    match of {
        Type::Bool => value.is_boolean(),
        Type::Int => value.is_i64() || value.is_u64(),
        Type::Float => value.is_number(),
        Type::String => value.is_string(),
        Type::Optional(inner) => value.is_null() || has_type(value, inner, interface),
        Type::Array(inner) => {
            value.as_array().is_some_and(|a| a.iter().all(|v| has_type(v, inner, interface)))
        }
        Type::Custom(name) => {
            let named = interface.custom_types().find(|t| t.name().to_string() == name.to_string());
            match named.unwrap_or_else(|| panic!("no type {name}")) {
                CustomType::Object(object) => has_fields(value, object.fields(), interface),
                CustomType::Enum(of) => {
                    of.variants().any(|v| Some(v.name().to_string().as_str()) == value.as_str())
                }
            }
        }
        other => panic!("{other:?} is not used"),
    }
}

/// Whether a value has exactly these fields.
fn has_fields<'a, 'b: 'a>(
    value: &Value,
    fields: impl Iterator<Item = &'a Field<'b>>,
    interface: &Interface<'_>,
) -> bool {
    let object = value.as_object().unwrap();
    let mut count = 0;
    for field in fields {
        count += 1;
        let found = object.get(&field.name().to_string());
        if !found.is_some_and(|v| has_type(v, field.ty(), interface)) {
            return false;
        }
    }
    object.len() == count
}

/// Asserts that the parameters and the result of a method have these types.
fn check<P: Serialize + DeserializeOwned, R: Serialize>(
    text: &str,
    method: &str,
    takes: &P,
    gives: &R,
) {
    let interface = Interface::try_from(text).unwrap();
    let (name, method) = method.rsplit_once('.').unwrap();
    assert_eq!(*interface.name(), name);
    let found = interface.methods().find(|m| *m.name() == method).expect(method);
    let takes = serde_json::to_value(takes).unwrap();
    assert!(has_fields(&takes, found.inputs(), &interface), "{method} does not accept {takes}");
    let gives = serde_json::to_value(gives).unwrap();
    assert!(has_fields(&gives, found.outputs(), &interface), "{method} does not return {gives}");
    let mut with_one_more = takes;
    with_one_more["surplus"] = json!(1);
    let mut call = Call {
        method: String::new(),
        parameters: with_one_more,
        ..Call::read(b"{\"method\":\"\"}").unwrap()
    };
    assert!(call.parameters::<P>().is_err(), "{method} accepts unknown parameters");
}

#[test]
fn types_agree_with_the_interface() {
    let text = host::DESCRIPTION;
    let goal = host::Goal { rate_min: Some(1.5), rate_max: None, window: 4, hold: true };
    let group = host::Group {
        owner: 1000,
        group: 7,
        mode: 0o600,
        members: 2,
        beats: 9,
        global_rate: 1.0,
        window_rate: 2.5,
        goal,
        pids: vec![12],
    };
    let claim = host::Claim { claim: 3, pid: 12, cpus: vec![0, 1], keep: Some(vec![0]) };
    let invade = host::Invade {
        claim: Some(1),
        min: 1,
        max: 8,
        numa: Some(host::Numa::Scatter),
        within: Some(vec![1]),
        prefer: Some(vec![2]),
    };
    let status = host::Status {
        version: "0".into(),
        period_ns: 1,
        steering: true,
        clients: 1,
        programs: 2,
        groups: 3,
        claims: 4,
        steered: vec![host::Steered {
            pid: 12,
            name: "xz".into(),
            policy: "auto".into(),
            changes: vec!["class batch".into()],
        }],
        notes: vec!["a".into()],
    };
    let nothing = host::Nothing {};
    for role in [host::Role::Producer, host::Role::Consumer] {
        let attach = host::Attach { group: 7, owner: Some(0), mode: Some(0o600), role };
        check(text, host::ATTACH, &attach, &host::Attached { period_ns: 1 });
        check(text, host::DETACH, &host::Detach { group: 7, owner: None, role }, &nothing);
    }
    check(text, host::SET_GOAL, &host::SetGoal { group: 7, owner: None, goal }, &nothing);
    let id = Some(host::GroupId { owner: 1000, group: 7 });
    check(
        text,
        host::LIST_GROUPS,
        &host::ListGroups { after: id },
        &host::Groups { groups: vec![group], next: id },
    );
    check(text, host::INVADE, &invade, &host::Invaded { claim: 3, cpus: vec![1] });
    let compact = host::Invade {
        claim: None,
        numa: Some(host::Numa::Compact),
        within: None,
        prefer: None,
        ..invade
    };
    check(text, host::INVADE, &compact, &host::Invaded { claim: 3, cpus: vec![] });
    let retreat = host::Retreat { claim: 3, to: Some(1), cpus: Some(vec![1]) };
    check(text, host::RETREAT, &retreat, &host::Retreated { cpus: vec![0] });
    let change = host::ClaimChange { claim: 3, cpus: vec![0], deadline_ms: Some(500) };
    check(text, host::WATCH_CLAIMS, &nothing, &change);
    check(text, host::LIST_CLAIMS, &nothing, &host::Claims { claims: vec![claim] });
    check(text, host::STATUS, &nothing, &status);
    assert_eq!(
        Interface::try_from(text).unwrap().methods().count(),
        9,
        "a method is not looked at here"
    );
}

#[test]
fn types_agree_with_the_service_interface() {
    let text = service::DESCRIPTION;
    let info = service::Info {
        vendor: "v".into(),
        product: "p".into(),
        version: "1".into(),
        url: "u".into(),
        interfaces: vec!["i".into()],
    };
    check(text, service::GET_INFO, &host::Nothing {}, &info);
    let asked = service::Asked { interface: "i".into() };
    check(
        text,
        service::GET_INTERFACE_DESCRIPTION,
        &asked,
        &service::Described { description: "d".into() },
    );
}

#[test]
fn refusals_agree_with_the_interfaces() {
    let why = || "w".to_string();
    let refusals = [
        Refusal::NotAllowed { why: why() },
        Refusal::NoSuchGroup { why: why() },
        Refusal::NoSuchClaim { why: why() },
        Refusal::TooMany { what: why(), limit: 3 },
        Refusal::BadRequest { why: why() },
        Refusal::InterfaceNotFound { interface: why() },
        Refusal::MethodNotFound { method: why() },
        Refusal::MethodNotImplemented { method: why() },
        Refusal::InvalidParameter { parameter: why() },
        Refusal::PermissionDenied {},
        Refusal::ExpectedMore {},
    ];
    let interfaces =
        [host::DESCRIPTION, service::DESCRIPTION].map(|text| Interface::try_from(text).unwrap());
    assert_eq!(interfaces.iter().map(|i| i.errors().count()).sum::<usize>(), refusals.len());
    for refusal in refusals {
        let reported = serde_json::to_value(&refusal).unwrap();
        let (name, error) = reported["error"].as_str().unwrap().rsplit_once('.').unwrap();
        let interface = interfaces.iter().find(|i| *i.name() == name).unwrap();
        let error = interface.errors().find(|e| *e.name() == error).unwrap();
        assert!(has_fields(&reported["parameters"], error.fields(), interface), "{reported}");
        assert_eq!(serde_json::from_value::<Refusal>(reported).unwrap(), refusal);
    }
}
