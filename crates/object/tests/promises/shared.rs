//! P8: a tenant at its limit, on a store that does not answer, slows only itself.

use slackwater::{File, WaitFor, WriteRequest, Written};
use slackwater_object::layers::Rule;
use slackwater_testkit::pattern;

use crate::rig::{PAGE, within};
use crate::volume::{Volume, slow};

#[test]
fn p08_a_tenant_at_its_limit_does_not_slow_another_on_a_store_that_hangs() {
    const LIMIT: u64 = 1 << 20;
    let volume = Volume::new(slow());
    let (hog, other) = (volume.create("hog"), volume.create("other"));
    volume.volume.sync().unwrap();
    volume.fault.add(Rule::hang());
    let tenants = [Some(LIMIT), None].map(|limit| volume.engine.memcg_create("tenant", None, limit));
    let hog = File::open_for(hog.inode(), &tenants[0]).unwrap();
    let mut taken = 0;
    let chunk = pattern(1, 16 * PAGE);
    while let Written::Bytes(bytes) = hog.write(WriteRequest::at(taken).wait(WaitFor::Backend), &chunk).unwrap() {
        taken += bytes as u64;
        assert!(taken <= LIMIT + chunk.len() as u64, "{taken} bytes of a limit of {LIMIT}");
    }
    assert!(taken > 0);
    let other = File::open_for(other.inode(), &tenants[1]).unwrap();
    within("a write of another tenant", move || other.write_at(0, &pattern(2, 100 * PAGE))).unwrap();
    volume.fault.clear();
    volume.fault.release();
}
