//! Requests to a server in Python.

use std::net::TcpListener;

use super::cluster::{Cluster, certify};
use super::*;

const UID: &str = "8c5b4a52-7d7b-4f0e-9f2a-0f5a3f6c1d2e";

fn cluster(test: &str) -> Option<Cluster> {
    Cluster::new(test, UID)
}

impl Cluster {
    fn api(&self) -> Api {
        Api::at("127.0.0.1", self.port, &self.account)
    }

    #[track_caller]
    fn failure(&self, name: &str) -> Failure {
        self.api().annotations(&pod(name)).unwrap_err()
    }
}

fn pod(name: &str) -> Pod {
    Pod { namespace: "shop".to_owned(), name: name.to_owned(), uid: UID.to_owned() }
}

#[test]
fn annotations_are_read_with_the_token_of_the_moment() {
    let Some(cluster) = cluster("annotations") else { return };
    let api = cluster.api();
    let annotations = api.annotations(&pod("web-0")).unwrap();
    assert_eq!(annotations.get("slackwater.dirty-limit").map(String::as_str), Some("64MiB"));
    assert_eq!(api.annotations(&pod("bare")), Ok(BTreeMap::new()));
    fs::write(cluster.account.join("token"), "an.old.token").unwrap();
    let refused = api.annotations(&pod("web-0")).unwrap_err();
    assert!(refused.what.contains("refuses the plugin's token"), "{refused}");
    cluster.give_token();
    assert!(api.annotations(&pod("web-0")).is_ok());
    fs::remove_file(cluster.account.join("token")).unwrap();
    assert!(api.annotations(&pod("web-0")).unwrap_err().to_string().contains("service account"));
}

#[test]
fn each_refusal_says_what_to_do() {
    let Some(cluster) = cluster("refusals") else { return };
    let absent = cluster.failure("absent");
    assert!(absent.reason == Reason::NotMounted && absent.what.contains("pods/absent"), "{absent}");
    assert_eq!(cluster.failure("successor").reason, Reason::NotMounted, "its uid is another");
    assert!(cluster.failure("forbidden").to_string().contains("verb get on pods"));
    assert!(cluster.failure("broken").what.contains("500"));
    // The token is not sent to another place.
    assert!(cluster.failure("moved").what.contains("307"));
    assert!(cluster.failure("garbage").what.contains("no metadata"));
    for name in ["../secrets/x", "a/b", "a?b", "", "A", "a%2f", ".."] {
        assert_eq!(cluster.failure(name).reason, Reason::Usage, "{name}");
    }
}

#[test]
fn a_huge_answer_and_a_slow_one_are_cut_off() {
    let Some(cluster) = cluster("limits") else { return };
    assert!(cluster.failure("huge").what.contains("more than the metadata"));
    assert_eq!(cluster.failure("slow").reason, Reason::Deadline);
    assert_eq!(cluster.failure("slower").reason, Reason::Deadline);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Api::at("127.0.0.1", listener.local_addr().unwrap().port(), &cluster.account);
    assert_eq!(silent.annotations(&pod("web-0")).unwrap_err().reason, Reason::Deadline);
    drop(listener);
    assert_eq!(silent.annotations(&pod("web-0")).unwrap_err().reason, Reason::Failed);
}

#[test]
fn a_server_of_another_authority_gets_no_token() {
    let Some(cluster) = cluster("authority") else { return };
    certify(&cluster.account, "ca", &["-subj", "/CN=authority"]);
    let failure = cluster.failure("web-0");
    assert!(failure.what.contains("certificate"), "{failure}");
    // A certificate is for an address.
    let elsewhere = Api::at("::1", cluster.port, &cluster.account);
    assert_eq!(elsewhere.url, format!("https://[::1]:{}", cluster.port));
    fs::write(cluster.account.join("ca.crt"), "nonsense").unwrap();
    assert!(cluster.failure("web-0").what.contains("ca.crt") || cluster.failure("web-0").what.contains("certificate"));
}
