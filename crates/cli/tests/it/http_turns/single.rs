//! One server per database: a second one is refused, and one that lost the database stops.

use crate::http_turns::{
    outages::Postgres,
    served::{Served, skip, within},
};
use crate::world::{World, stderr};
use std::process::Command;

fn on(postgres: &Postgres) -> World {
    let world = World::new();
    let settings = format!("[database]\nurl = \"{}\"\n", postgres.url);
    std::fs::write(world.data().join("seawall.toml"), settings).unwrap();
    world
}

/// What a server that is not let in says.
fn refused(world: &World) -> String {
    let output = world.seawall(["serve", "--listen", "127.0.0.1:0"]);
    assert!(!output.status.success(), "it serves");
    stderr(&output)
}

#[test]
fn http_a_second_server_on_the_same_database_is_refused() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => return skip("http_a_second_server_on_the_same_database_is_refused", &why),
    };
    let mut first = Served::on(on(&postgres));
    let other = on(&postgres);
    let node = std::fs::read_to_string(first.world.data().join("node")).unwrap();
    let said = refused(&other);
    assert!(said.contains("another server has this database") && said.contains(node.trim()), "{said}");
    // The same node replaces its own at once, also after a crash, and the other is still kept out.
    first.kill();
    assert!(refused(&other).contains(node.trim()));
    first.start();
    assert_eq!(first.said_ready(), 200);
    assert!(refused(&other).contains(node.trim()));
    // One that ends in order lets the next in.
    first.terminate();
    assert!(first.wait().success());
    // The keys are the database's: a server that finds some makes no other.
    std::fs::copy(first.world.data().join("key"), other.data().join("key")).unwrap();
    let second = Served::on(other);
    assert_eq!(second.said_ready(), 200);
    // One that lost the database, as after a pause of its machine, says so and stops.
    let taken = "UPDATE leases SET holder = 'another', epoch = epoch + 1 WHERE name = 'server'";
    let done = Command::new("psql").args(["-qX", "-c", taken, &postgres.url]).status().unwrap();
    assert!(done.success());
    let mut second = second;
    let status = second.wait();
    assert!(!status.success(), "{status:?}");
    within(5, "it says why", || second.log().contains("another server has taken this database over"));
}
