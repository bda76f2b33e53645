"""Who a client is."""

from __future__ import annotations

from inorder.client.identity import Identity, MessageIds, local_ip
from inorder.testing.clock import FakeClock


def test_the_client_id_has_rocketmqs_form():
    """ip@pid#number, or ip@instance if one is given."""
    assert Identity("10.0.0.1", 4711, 99).client_id == "10.0.0.1@4711#99"
    assert Identity("10.0.0.1", 4711, 99, "DEFAULT").client_id == "10.0.0.1@DEFAULT"


def test_two_identities_of_one_process_differ():
    """Each session is a client of its own."""
    assert Identity.of_this_process() != Identity.of_this_process()


def test_message_ids_are_unique_and_repeatable():
    """The same identity and clock give the same ids, and none twice."""
    identity = Identity("10.0.0.1", 4711, 99)
    one, two = MessageIds(identity, FakeClock()), MessageIds(identity, FakeClock())
    ids = [one.next() for _ in range(100)]
    assert len(set(ids)) == 100
    assert ids == [two.next() for _ in range(100)]
    assert all(len(text) == 32 for text in ids)


def test_the_local_address_is_an_address():
    """Without a network it is loopback."""
    assert local_ip().count(".") == 3
