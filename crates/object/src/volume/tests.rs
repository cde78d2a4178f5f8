//! Volumes that cannot be made or opened.

use slackwater_s3_server::Server;
use slackwater_sync::shim::Arc;

use crate::claimed::Claimed;
use crate::layers::{Failure, Fault, Layered, Rule};
use crate::look::look;
use crate::mkfs::mkfs;
use crate::runtime;
use crate::store::tests::{ANSWERED, environment};
use crate::store::{Location, Store};
use crate::volume::{ObjectBackend, OpenOptions};
use crate::writer::Claims;

#[test]
fn a_claim_is_given_back_if_the_tree_cannot_be_opened_and_nothing_is_to_be_replayed() {
    let fault = Arc::new(Fault::new());
    let faulty = fault.clone();
    let location = Location::parse("memory:claims/of-failed-mounts").expect("a good URL");
    let location = location.layered(move |store| Arc::new(Layered::new(faulty.clone(), store)));
    let folder = std::env::temp_dir().join(format!("slackwater-object-opened-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    runtime::handle().expect("threads").block_on(async {
        mkfs(&location, 0o755).await.expect("makes a volume");
        let store = Store::connect(&location, None).expect("connects");
        let record = look(&location, &*store.hasty).await.expect("it is there");
        let options = OpenOptions { log_dir: Some(folder.clone()), ..OpenOptions::default() };
        fault.add(Rule::fail(Failure::Permission).under("meta/"));
        let is_left_behind = async || {
            let opened = ObjectBackend::open_in_runtime(&location, &options).await;
            assert!(opened.is_err(), "the store fails");
            Claims::new(store.hasty.clone()).is_left_behind().await.expect("lists")
        };
        assert!(!is_left_behind().await);
        std::fs::write(folder.join(format!("object-{}-{:020}.log", record.id_text(), 5)), [0; 1000]).expect("writes");
        assert!(is_left_behind().await, "repairs must not write before the log is replayed");
        let refused = Claimed::of_unmounted(&location, &store, &record).await;
        assert!(refused.is_err_and(|error| error.to_string().contains("Mount the volume")));
    });
    std::fs::remove_dir_all(&folder).expect("removes");
}

#[test]
fn a_volume_is_not_made_in_a_missing_bucket_and_the_command_for_one_is_named() {
    let server = Server::start().expect("a server on loopback");
    let nowhere =
        Location::parse_in("s3://nowhere/volume", environment(&server)).expect("a good URL").patient(ANSWERED);
    let text = ObjectBackend::mkfs(&nowhere).expect_err("there is no bucket").to_string();
    assert!(text.contains("no such bucket") && text.contains("Make the bucket (aws s3 mb s3://nowhere"), "{text}");
}
