//! What the bounds of messages hold, and how records look where they are read.

use super::*;

#[test]
fn messages_look_as_they_are_documented() {
    let names = Names {
        rules: vec![NameRule { host: "*.example.org".into(), port: Some(443), tcp: false, rule: 3 }],
        addresses: vec![AddressRule { net: "10.0.0.0/8".parse().unwrap(), port: None, allow: true }],
        ..Names::default()
    };
    let text = serde_json::to_string(&ToEgress::Policy { names, audit: false }).unwrap();
    assert_eq!(
        text,
        concat!(
            r#"{"policy":{"names":{"rules":[{"host":"*.example.org","port":443,"tcp":false,"rule":3}],"denies":[],"#,
            r#""addresses":[{"net":"10.0.0.0/8","port":null,"allow":true}],"options":{"ech":false,"max_upload":null}},"#,
            r#""audit":false}}"#
        )
    );
    assert_eq!(serde_json::to_string(&FromEgress::Ready).unwrap(), r#""ready""#);
    assert_eq!(
        serde_json::to_string(&FromEgress::WhoIs { id: 7, port: 40_000 }).unwrap(),
        r#"{"who_is":{"id":7,"port":40000}}"#
    );
}

#[test]
fn the_token_of_a_proxy_is_not_shown() {
    let token = ProxyToken("5ec2e7".into());
    let proxy = EgressProxy { profile: "p".into(), names: Names::default(), token, uploads: Vec::new() };
    let text = serde_json::to_string(&ToEgress::Proxy(proxy.clone())).unwrap();
    assert!(text.contains(r#""token":"5ec2e7""#), "{text}");
    assert!(!format!("{:?}", ToEgress::Proxy(proxy)).contains("5ec2e7"));
}

#[test]
fn what_a_message_does_not_have_is_refused() {
    let known = r#"{"who_is":{"id":7,"port":1}}"#;
    assert!(serde_json::from_str::<FromEgress>(known).is_ok());
    for strange in [
        r#"{"who_is":{"id":7,"port":1,"name":"x"}}"#,
        r#"{"who_is":{"id":7,"port":65536}}"#,
        r#"{"counts":{"open":1,"more":2}}"#,
        r#"{"complaint":"x","ready":null}"#,
    ] {
        assert!(serde_json::from_str::<FromEgress>(strange).is_err(), "{strange}");
    }
    assert!(serde_json::from_str::<FromEgress>(r#"{"uploads":[{"host":"a.org","bytes":-1}]}"#).is_err());
    let reports = r#"{"reports":[{"at":1,"record":{"lost":{"count":1,"of":"x"}}}]}"#;
    assert!(serde_json::from_str::<EgressReports>(reports).is_err());
}

#[test]
fn no_frame_has_more_reports_than_may_be() {
    let of = |count: usize| {
        let one = r#"{"at":1,"record":{"lost":{"count":1}}}"#;
        format!(r#"{{"reports":[{}]}}"#, vec![one; count].join(","))
    };
    let read = serde_json::from_str::<EgressReports>(&of(REPORTS_AT_ONCE)).unwrap();
    assert_eq!(read.reports.len(), REPORTS_AT_ONCE);
    let error = serde_json::from_str::<EgressReports>(&of(REPORTS_AT_ONCE + 1)).unwrap_err();
    assert!(error.to_string().contains("at most 64"), "{error}");
}

#[test]
fn the_longest_word_of_uploads_fits_and_a_start_without_any_is_as_ever() {
    let upload = Upload { host: "x".repeat(MAX_NAME + 2), bytes: u64::MAX };
    let said = FromEgress::Uploads(vec![upload.clone(); UPLOADS_AT_ONCE]);
    assert!(serde_json::to_vec(&said).unwrap().len() <= MAX_QUESTION);
    let start = EgressStart {
        container: "0123456789ab".into(),
        profile: "p".into(),
        block: "198.18.7.0/24".parse().unwrap(),
        names: Names::default(),
        audit: false,
        v6: false,
        host_network: true,
        uploads: Vec::new(),
    };
    let text = serde_json::to_string(&start).unwrap();
    assert!(!text.contains("uploads"), "{text}");
    assert_eq!(serde_json::from_str::<EgressStart>(&text).unwrap(), start);
    let with = EgressStart { uploads: vec![upload], ..start };
    let text = serde_json::to_string(&with).unwrap();
    assert_eq!(serde_json::from_str::<EgressStart>(&text).unwrap(), with);
}

#[test]
fn the_longest_frame_of_reports_fits() {
    let flow = Flow {
        address: [255; 4].into(),
        port: u16::MAX,
        call: u64::MAX,
        pid: u32::MAX,
        tgid: u32::MAX,
        start: u64::MAX,
        uid: u32::MAX,
    };
    let record = EgressRecord::Connection {
        name: "x".repeat(MAX_NAME),
        port: u16::MAX,
        dialled: Some("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap()),
        tls: false,
        sent: u64::MAX,
        received: u64::MAX,
        duration_us: u64::MAX,
        outcome: EgressOutcome::WouldDeny,
        cause: Some(EgressCause::Unreachable),
        // Each is two bytes in JSON.
        reason: Some("\"".repeat(MAX_SENTENCE)),
        rule: Some(u32::MAX),
    };
    let report = EgressReport { at: i64::MIN, flow: Some(flow), record };
    let frame = EgressReports { reports: vec![report; REPORTS_AT_ONCE] };
    assert!(serde_json::to_vec(&frame).unwrap().len() <= MAX_REPORTS);
}
