"""The planted bugs: one rule of the contract each, switched off in the real code.

`rule` names the promises and schedules (P1..P9, A1..A18, O19..O21) that the rule belongs to, or
its subject (TLS, limits, audit).
`caught_by` says what must find it: `sim`, the simulation of the contract; `pops`, the one of POP;
tests one by one (`tests/…::test_name`), each of which must fail; files of tests, of which one must
have a test that fails.
"""

from __future__ import annotations

from dataclasses import dataclass

_LEASES = "inorder.broker.leases.rules"
_LEASING = "inorder.broker.leases.service"
_OFFSETS = "inorder.broker.offsets.service"
_OWNERS_FILE = "inorder.broker.leases.storage"
_STARTS = "inorder.broker.leases.storage"
_TENURE = "inorder.client.consume.rules.leases"
_CLIENT = "inorder.client.consume.leases"
_KEYED = "inorder.client.consume.rules.keyed"
_PARKING = "inorder.broker.parking.rules"
_RESIZING = "inorder.broker.resizing.rules"
_REWINDING = "tests/integration/test_rewinding.py"
_STORIES = "tests/integration/test_rewinding_stories.py"
_TRANSACTIONS = "inorder.broker.transactions"
_IN_TRANSACTIONS = "tests/integration/test_broker_transactions.py::"
_NUMBERING = "inorder.broker.producers.service"
_SENDING = "inorder.broker.sends.service"
_PULLING = "inorder.broker.pulls.service"
_NATIVE = "inorder.native"

_QUEUES = "inorder.client.send.queues"
_IN_TWINS = "tests/property/test_sending_twins.py::"
_IN_BATCHES = "tests/unit/client/send/test_automatic_batches.py::"

_ACCESS_RULES = "inorder.access.rules"
_ACCESS_SERVICE = "inorder.access.service"
_IN_TOGETHER = "tests/integration/test_access_together.py::"
_IN_ACCESS = "tests/integration/test_access_broker.py::"
_IN_ATTACKS = "tests/integration/test_access_attacks.py::"
SIM = "sim"
POPS = "pops"
_IN_LEASES = "tests/integration/test_broker_leases.py::"
_IN_COMEBACKS = "tests/integration/test_rocketmq_comebacks.py::"
_IN_FLAPPING = "tests/integration/test_flapping_broker.py::"
_IN_DAMAGE = "tests/integration/test_damaged_queues.py::"
_IN_CONSUMERS = "tests/integration/test_consumer_leases.py::"
_IN_SENDS = "tests/integration/test_idempotent_sends.py::"
_OF_TWINS = "tests/property/test_hot_path_twins.py::"
_IN_TIMERS = "tests/integration/test_broker_timers.py::"
_POPPING = "inorder.broker.pops"
_IN_POPS = "tests/simulation/test_pop_schedules.py::"
_IN_RESIZING = "tests/integration/test_resizing.py::"
_IN_MOVES = "tests/integration/test_consumer_moves.py::"
_IN_ORDERED = "tests/integration/test_consumer_ordered.py::"
_IN_REQUESTS = "tests/integration/test_request_reply.py::"
_IN_TLS = "tests/integration/test_tls_servers.py::"
_OF_RUNS = "tests/unit/client/consume/test_keyed_runner.py::"
_OF_A_POWER_CUT = f"{_IN_LEASES}test_a9_after_a_power_cut_nobody_resumes_and_epochs_still_grow"
_OF_A_FORGOTTEN_OWNER = (
    f"{_IN_LEASES}test_a9_after_a_power_cut_an_owner_does_not_resume_beside_a_forgotten_next_owner"
)


@dataclass(frozen=True)
class Mutant:
    """A bug."""

    name: str
    rule: str
    what: str
    module: str
    before: str
    after: str
    caught_by: str = SIM
    seeds: int = 400
    """How many seeds of the simulation it takes at most."""

    @property
    def by_sim(self) -> bool:
        """Tell whether the simulation must find it."""
        return SIM in self.caught_by.split()

    @property
    def by_pops(self) -> bool:
        """Tell whether the simulation of POP must find it."""
        return POPS in self.caught_by.split()

    @property
    def nodes(self) -> list[str]:
        """Return the tests that must fail, one by one."""
        return [word for word in self.caught_by.split() if "::" in word]

    @property
    def files(self) -> list[str]:
        """Return the files of which one must have a test that fails."""
        return [word for word in self.caught_by.split() if word.endswith(".py")]


MUTANTS = [
    # ACL files of RocketMQ 4, and what somebody with a login of his own tries.
    Mutant(
        "named-right-adds-to-the-default", "access", "a named right does not take the default away",
        "inorder.access.plainbook",
        "        elif missing:\n",
        "        elif missing and kind is None:\n",
        "tests/unit/access/test_plainbook.py::test_rules_decide_as_rocketmq_4_does",
    ),
    Mutant(
        "white-address-is-lost", "access", "an account with an address may be used from everywhere",
        "inorder.access.plainbook",
        "            yield Entry(resource, _actions(rights), True, sources)\n",
        "            yield Entry(resource, _actions(rights), True)\n",
        "tests/unit/access/test_plainbook.py::test_addresses_narrow_what_is_allowed",
    ),
    Mutant(
        "half-a-file-counts", "access", "an ACL file is taken while somebody writes it",
        "inorder.access.plainfiles",
        "        if digest != self._unsettled:\n",
        "        if digest == self._unsettled:\n",
        "tests/unit/access/test_plainfiles.py::test_a_file_counts_when_two_looks_see_the_same",
    ),
    Mutant(
        "halves-are-shown-to-strangers", "access", "any user is asked about any transaction",
        "inorder.broker.transactions.service",
        "            members = [one for one in members if guard.member_may(one, group, need)]\n",
        "            assert need\n",
        f"{_IN_ATTACKS}test_a_half_is_shown_only_to_those_who_may_send_to_its_topic",
    ),
    Mutant(
        "named-producer-is-free", "access", "a named producer is anybody's while it is away",
        "inorder.access.service",
        "            if count > 1 or one[0] is What.NAMED_PRODUCER:\n",
        "            if count > 1:\n",
        f"{_IN_ATTACKS}test_a_named_producer_stays_with_its_user",
    ),
    Mutant(
        "one-user-takes-all-names", "access", "there is no limit of names for one user",
        "inorder.access.service",
        "            or self._owned_by.get(user, 0) + len(new) > OWNED_OF_USER_MAX\n",
        "",
        f"{_IN_ATTACKS}test_nobody_takes_the_room_for_names_of_all",
    ),
    # Access control: who may do what.
    Mutant(
        "allow-beats-deny", "access", "an entry that allows comes before one that denies",
        _ACCESS_RULES,
        "            -len(resource.name),\n            self.allow,\n",
        "            -len(resource.name),\n            not self.allow,\n",
        "tests/unit/access/test_access_rules.py::test_deny_counts_on_a_tie",
    ),
    Mutant(
        "short-prefix-first", "access", "the shorter prefix decides, as in RocketMQ 5.3.3",
        _ACCESS_RULES,
        "            -len(resource.name),\n",
        "            len(resource.name),\n",
        "tests/property/test_access_model.py::test_the_decision_is_that_of_the_levels "
        "tests/unit/access/test_access_rules.py::test_the_longer_prefix_counts",
    ),
    Mutant(
        "old-counters-come-again", "access", "a counter below the window is taken once more",
        _ACCESS_RULES,
        "        if behind >= WINDOW or self._seen >> behind & 1:\n",
        "        if behind < WINDOW and self._seen >> behind & 1:\n",
        "tests/unit/access/test_access_rules.py::test_counters_come_once_and_in_a_window",
    ),
    Mutant(
        "any-mark-is-taken", "access", "a request of a session goes with another code, or renamed",
        _ACCESS_SERVICE,
        '            or not hmac.compare_digest(mark.encode("utf-8", "replace"), wanted)\n',
        "",
        "tests/unit/access/test_access_guard.py::"
        "test_a_mark_holds_for_its_connection_its_request_and_once",
    ),
    Mutant(
        "old-secrets-are-kept", "access", "a changed secret counts with the next start",
        _ACCESS_SERVICE,
        "        self._verdicts.clear()\n        self._keys.clear()\n",
        "        self._verdicts.clear()\n",
        "tests/unit/access/test_access_guard.py::test_a_changed_secret_counts_at_once",
    ),
    Mutant(
        "marks-forget-the-lengths", "access", "bytes of a request in a session move between fields",
        _NATIVE,
        "        put32(out + 4 * (count + at), found[at].value_size)\n",
        "        put32(out + 4 * (count + at), 0)\n",
        "tests/unit/access/test_access_guard.py::"
        "test_a_mark_holds_for_its_connection_its_request_and_once",
    ),
    Mutant(
        "system-topics-for-all", "access", "a rule for all topics opens those of the broker",
        _ACCESS_RULES,
        "        return not is_system_topic(name)\n",
        "        return True\n",
        "tests/unit/access/test_access_rules.py::test_system_topics_and_groups_take_a_super_user",
    ),
    Mutant(
        "judged-and-served-apart", "access", "a send takes the fast path in the peer's own bytes",
        "inorder.broker.router",
        "        sends: list[Command] = []\n        try:\n",
        "        sends: list[Command] = []\n        self._guard = None\n        try:\n",
        f"{_IN_ACCESS}test_a_changed_frame_is_refused",
    ),
    Mutant(
        "credentials-are-passed-on", "access", "a consumer sees the signature of an operator",
        "inorder.broker.router",
        "            if name in fields:\n                del fields[name]\n",
        "            if name in fields:\n                pass\n",
        f"{_IN_ACCESS}test_handlers_and_consumers_see_no_credentials",
    ),
    Mutant(
        "held-pulls-outlive-rights", "access",
        "a held pull brings a message after the right is gone",
        _PULLING,
        "            refusal = guard.still(pull.admission)\n",
        "            refusal = None\n",
        f"{_IN_ACCESS}test_a_held_pull_ends_when_the_password_changes",
    ),
    Mutant(
        "retry-topic-of-anybody", "access",
        "a send to the retry topic of a group needs a topic right",
        "inorder.access.codes",
        "    group = group_of_topic(topic)\n    if group is None:\n",
        "    group = group_of_topic(topic)\n    if group is None or actions & Action.PUB:\n",
        f"{_IN_ACCESS}test_the_group_in_a_retry_topic_counts",
    ),
    Mutant(
        "anybody-sends-back", "access", "a message of another topic is copied to an own group",
        "inorder.access.codes",
        "    yield Need(Kind.GROUP, _field(command, \"group\"), Action.SUB)\n"
        "    topic = lookups.topic_at(_position(command, \"offset\"))\n"
        "    if topic is not None:\n",
        "    yield Need(Kind.GROUP, _field(command, \"group\"), Action.SUB)\n"
        "    topic = lookups.topic_at(_position(command, \"offset\"))\n"
        "    if topic is None:\n",
        f"{_IN_ACCESS}test_a_consumer_cannot_reach_other_topics",
    ),
    Mutant(
        "shared-file-is-taken", "access", "a file of secrets that others may read is used",
        "inorder.access.storage",
        "        if info.mode & _OTHERS:\n            raise StoreError(\n",
        "        if info.mode & 0o100000:\n            raise StoreError(\n",
        "tests/unit/access/test_access_storage.py::test_a_file_that_others_may_read_is_refused",
    ),
    # The compiled hot path: the module itself, and those who call it.
    Mutant(
        "backup-ends-before-its-tables", "A17",
        "the log of a backup ends where it did before the tables were read",
        "inorder.backups.taking",
        "        return _Captured(head, copied)\n",
        "        return _Captured(before, copied)\n",
        "tests/unit/backups/test_taking.py::"
        "test_a_state_is_never_ahead_of_the_log_that_is_restored",
    ),
    Mutant(
        "backup-believes-one-reading", "A17",
        "tables of several moments make a backup",
        "inorder.backups.taking",
        "        check_unchanged(files, root, copied)\n",
        "",
        "tests/unit/backups/test_taking.py::test_a_state_that_never_stands_still_is_given_up",
    ),
    Mutant(
        "restored-broker-lost-nothing", "A17",
        "a restored broker continues in the generation of the backup, and owners resume",
        "inorder.backups.restoring",
        'boot_id="", clean=False,',
        'clean=True,',
        "tests/integration/test_restored_broker.py::"
        "test_epochs_and_fences_are_above_all_that_the_old_broker_gave_out",
    ),
    Mutant(
        "restored-map-is-the-next-one", "A17",
        "a restored key map gets the version after its own, which a resize may have used",
        "inorder.backups.rules",
        "    version = above + 1\n",
        "    version = now.version + 1\n",
        "tests/unit/backups/test_backup_rules.py::"
        "test_a_fence_after_the_restore_is_above_those_after_a_resize_that_the_backup_lacks",
    ),
    Mutant(
        "run-takes-any-connection", "P1",
        "a numbered message of a run is stored over a connection that its producer has left",
        _NATIVE,
        "            if producer.connection is not connection or producer.named",
        "            if producer.named",
        f"{_OF_TWINS}test_a_producer_that_moved_to_another_connection_is_refused_on_the_first",
    ),
    Mutant(
        "run-takes-any-number", "P1", "a numbered message of a run is stored before its turn",
        _NATIVE,
        "        return marks.number == place.number + 1\n",
        "        return marks.number >= place.number\n",
        f"{_OF_TWINS}test_both_ways_leave_and_answer_the_same",
    ),
    Mutant(
        "run-stores-what-it-does-not-know", "P1",
        "a message with a property that has a meaning elsewhere is stored as a plain one",
        _NATIVE,
        "            is_word(at, name_size, b\"WAIT\", 4) or is_word(",
        "            name_size > 3 or is_word(",
        f"{_OF_TWINS}test_what_is_not_known_to_be_plain_is_left_alone",
    ),
    Mutant(
        "pull-looks-at-one-record", "P4",
        "a compiled answer trusts all entries but the first to lead to their messages",
        _NATIVE,
        "or at > limit - size or not is_record(\n",
        "or at > limit - size or count == 0 and not is_record(\n",
        f"{_OF_TWINS}test_an_answer_ends_before_an_entry_that_leads_elsewhere",
    ),
    Mutant(
        "run-outlives-its-map", "P9",
        "sends go on to a queue by an older key map, in the same run or later",
        _SENDING,
        "        if self._plain is not None:\n            self._plain.forget()\n",
        "",
        "tests/integration/test_idempotent_sends.py::"
        "test_an_older_map_version_is_refused_but_a_duplicate_is_not",
    ),
    Mutant(
        "one-reply-a-piece", "P1",
        "a run that was not written refuses only the first of its sends",
        "inorder.broker.ticks",
        "            for frame in FrameDecoder().receive_data(piece):\n",
        "            for frame in FrameDecoder().receive_data(piece)[:1]:\n",
        "tests/unit/broker/test_ticks.py::test_each_request_is_refused "
        "tests/unit/broker/test_ticks.py::test_each_request_hears_that_its_sync_is_late",
    ),
    Mutant(
        "run-is-not-indexed", "P1", "messages of a run are not found by their keys",
        "inorder.broker.sends.packing",
        "        self._note_rows(NotedRows(hashes, position, now_ms, positions, count))\n",
        "",
        f"{_OF_TWINS}test_a_large_read_fills_several_files_of_the_log",
    ),
    Mutant(
        "rows-are-ahead", "P1",
        "the keys of a run count as indexed before they are, and a kill loses them",
        "inorder.store.keyindex",
        "        self._added = first.position if isinstance(first, NotedRows) else first[2]\n",
        "        self._added = first[2]\n",
        "tests/property/test_index_twins.py::test_what_waits_tells_up_to_where_keys_are_added",
    ),
    Mutant(
        "run-has-no-time", "P1", "a checkpoint names an older store time than the log has",
        "inorder.store.commitlog",
        "        self._used = used\n        self._last_at = last_at\n\n",
        "        self._used = used\n\n",
        f"{_OF_TWINS}test_a_log_remembers_the_time_of_the_last_record_of_a_run",
    ),
    Mutant(
        "pull-skips-a-reset", "P4",
        "a compiled answer goes past a reset that waits for a pull",
        _PULLING,
        "            or self._broker.offsets.has_resets\n",
        "",
        f"{_OF_TWINS}test_rules_of_pulls_are_asked_before_the_compiled_module",
    ),
    Mutant(
        "pull-passes-a-resize", "P9",
        "a compiled answer goes past the place where a resize holds the group",
        _PULLING,
        "            or checked.resized\n            or connection.closed\n",
        "            or connection.closed\n",
        f"{_OF_TWINS}test_rules_of_pulls_are_asked_before_the_compiled_module "
        "tests/integration/test_resizing.py",
    ),
    # SQL92 filters.
    Mutant(
        "filtered-read-skips", "P4", "a pull whose time for filtering is up skips what it left",
        "inorder.store.reader",
        "        result.next_offset = offset + done\n",
        "        result.next_offset = offset + found\n",
        "tests/unit/store/test_filtered_reading.py::test_a_call_ends_when_its_time_is_used_up",
    ),
    Mutant(
        "unknown-is-false", "P4", "NOT makes a comparison with a missing property true",
        "inorder.filters.compiled",
        "        return None if found is None else not found\n",
        "        return not found\n",
        "tests/unit/filters/test_filter_values.py::test_truth_has_three_values",
    ),
    Mutant(
        "older-filter-replaces", "P4", "a member that is behind brings back its old filter",
        "inorder.broker.filters.rules",
        "            if version < record.version:\n",
        "            if version < 0:\n",
        "tests/unit/broker/filters/test_filter_table.py::"
        "test_a_heartbeat_registers_filters_by_their_version",
    ),
    # Damaged files.
    Mutant(
        "ends-are-not-noted", "P7, A14", "a queue that lost its files begins again at 0",
        "inorder.store.store",
        "            self.ends.note_ends(rows, self.log.end_position)\n",
        "",
        f"{_IN_DAMAGE}test_a_queue_whose_files_are_gone_goes_on_where_it_ended",
    ),
    Mutant(
        "tail-is-not-noted", "P7, A14", "a log that lost its end in a kill is treated as complete",
        "inorder.store.store",
        "        self._note_tail()\n",
        "",
        f"{_IN_DAMAGE}test_a_log_without_its_end_begins_a_generation_before_entries_were_written",
    ),
    Mutant(
        "hole-is-not-reported", "P4", "a record that the log lacks is skipped silently",
        "inorder.store.recovery",
        "        self.report.losses += (Loss(*gap, NOT_IN_LOG) for gap in dispatcher.gaps)\n",
        "",
        "tests/crash/test_queue_damage.py::"
        "test_a_record_that_names_another_topic_is_reported_as_a_loss_of_its_queue",
    ),
    Mutant(
        "entries-are-believed", "P4, A14",
        "a pull trusts queue entries that do not lead to their messages",
        "inorder.store.reader",
        "            right = count_intact(self._log, queue, data, offset, wanted)\n",
        "            right = found\n",
        f"{_IN_DAMAGE}test_entries_that_do_not_lead_to_their_messages_skip_nothing",
    ),
    Mutant(
        "generation-for-all-queues", "P7, A14",
        "one damaged queue begins a new generation of all queues",
        "inorder.broker.damage.service",
        "        broker.generations.begin_at(topic, queue_id, end, generation)\n",
        "        broker.generations.lost_tail([(topic, queue_id, end)], generation)\n",
        f"{_IN_DAMAGE}test_only_a_queue_whose_end_is_not_certain_gets_a_new_generation",
    ),
    Mutant(
        "every-end-is-certain", "P7, A14", "a damaged queue always stays in its generation",
        "inorder.store.recovery",
        "certain = mended.holds_last or clean or (noted is not None and noted.emptied)",
        "certain = True",
        f"{_IN_DAMAGE}test_only_a_queue_whose_end_is_not_certain_gets_a_new_generation",
    ),
    Mutant(
        "older-start-is-believed", "P2, A14",
        "a broker that lost its start file grants old epochs again",
        _STARTS,
        "                self.now, start=max(self.now.start, start), boot_id=\"\", clean=False\n",
        "                self.now, start=self.now.start, boot_id=\"\", clean=False\n",
        f"{_IN_DAMAGE}test_epochs_and_fences_grow_on_without_the_count_of_starts",
    ),
    Mutant(
        "a-power-cut-is-damage", "P4, A14",
        "offsets that are newer than their journal are thrown away",
        "inorder.broker.leases.storage",
        "        if not ours and broker.store.undisturbed and not self.start.may_have_lost:\n",
        "        if not ours and broker.store.undisturbed:\n",
        f"{_IN_DAMAGE}test_offsets_on_disk_count_after_a_power_cut_that_took_the_journal",
    ),
    Mutant(
        "a-wrong-entry-is-gone", "P4, A14", "a queue begins after an entry that has no record",
        "inorder.store.queues",
        "if found > low and not corrected and not is_gone(self._log, queue, found - 1):",
        "if False:",
        "tests/unit/store/test_queue_beginnings.py::test_a_negative_position_hides_nothing_before_it",
    ),
    # Who owns a queue.
    Mutant(
        "commit-without-epoch", "P4, A11", "a commit under a stale epoch counts",
        "inorder.broker.offsets.rules",
        "    if renewal.verdict not in (Verdict.RENEW, Verdict.RESUME):\n",
        "    if False:\n",
        "tests/integration/test_broker_leases.py::"
        "test_a_stale_epoch_pulls_commits_and_releases_nothing",
    ),
    Mutant(
        "pull-without-epoch", "P2", "a pull under a stale epoch is served and renews the lease",
        _LEASING,
        "        if lease is not None and lease.epoch == fields.epoch:\n",
        "        if lease is not None:\n",
        "tests/integration/test_broker_leases.py::"
        "test_a_stale_epoch_pulls_commits_and_releases_nothing",
    ),
    Mutant(
        "no-grace", "P2, A10", "a closed connection frees its queues at once",
        _LEASES,
        "until_ms = now_ms + lease.terms.grace_ms",
        "until_ms = now_ms",
        f"{SIM} {_IN_LEASES}"
        "test_a10_a_closed_connection_leaves_the_grace_only_if_it_renewed_last",
    ),
    Mutant(
        "late-close-shortens", "P2, A10", "any closed connection of the owner shortens its lease",
        _LEASES,
        "        if before is not None:\n            keys = self._renewed_by[before]\n"
        "            keys.discard(key)\n            if not keys:\n"
        "                del self._renewed_by[before]\n",
        "",
        f"{_IN_LEASES}test_a10_a_closed_connection_leaves_the_grace_only_if_it_renewed_last",
    ),
    Mutant(
        "expires-before-it-reads", "P2, A10",
        "a late loop expires a lease although the renewal has arrived",
        "inorder.broker.leases.service",
        "        for _ in range(ROUNDS):\n            await asyncio.sleep(0)\n",
        "",
        f"{_IN_LEASES}test_a10_a_late_loop_reads_renewals_before_it_expires_anything "
        f"{_IN_LEASES}test_a10_what_is_in_the_socket_is_read_before_the_timer_counts",
    ),
    Mutant(
        "lease-runs-out-early", "P2", "a lease lasts a sixteenth of the granted time",
        _LEASES,
        "expires_ms = now_ms + decision.terms.lease_ms",
        "expires_ms = now_ms + decision.terms.lease_ms // 16",
        "tests/unit/broker/leases/test_lease_rules.py",
    ),
    Mutant(
        "taken-away-at-once", "P2", "a forced release gives the queue to the next owner at once",
        _LEASES,
        "return max(now_ms, min(lease.expires_ms, lease.renewed_ms + lease.terms.trust_ms))",
        "return now_ms",
        "tests/integration/test_broker_leases.py::test_an_operator_takes_a_queue_away",
    ),
    Mutant(
        "owner-is-the-client-id", "A9",
        "another instance with the same client id counts as the owner",
        _LEASES,
        "            if lease.owner != owner:\n",
        "            if lease.owner.client_id != owner.client_id:\n",
        "tests/integration/test_broker_leases.py::test_a9_equal_client_ids_are_two_owners",
    ),
    Mutant(
        "resume-after-release", "P2, P5",
        "an owner that released a queue may resume under its epoch",
        _LEASES,
        "past is None or past.released or (past.owner, past.epoch) != (owner, epoch)",
        "past is None or (past.owner, past.epoch) != (owner, epoch)",
        "tests/unit/broker/leases/test_lease_rules.py",
    ),
    # Over restarts.
    Mutant(
        "grants-not-journalled", "P2, A9", "a grant is forgotten by a kill",
        _LEASING,
        "        self._write_grants(new)\n",
        "        del new\n",
        f"{_IN_LEASES}test_a9_after_a_kill_the_owner_resumes_and_others_wait_for_its_lease "
        f"{_IN_LEASES}test_a9_a_rocketmq_client_that_took_over_is_known_after_a_kill",
    ),
    Mutant(
        "commits-not-journalled", "P4", "an answered commit is forgotten by a kill",
        _LEASING,
        "        self._journal.write(records.values())\n        for decision in renewed:",
        "        for decision in renewed:",
        "tests/integration/test_broker_leases.py::test_p4_an_answered_commit_survives_a_kill",
    ),
    Mutant(
        "resume-over-a-power-cut", "A9", "owners in the journal resume after a power cut",
        _OWNERS_FILE,
        "same_boot=self.start.same_boot",
        "same_boot=True",
        f"{SIM} {_OF_A_FORGOTTEN_OWNER}",
    ),
    Mutant(
        "another-boot-is-not-seen", "A9", "a start after a power cut counts as one after a kill",
        _STARTS,
        "self.same_boot = known and bool(boot_id) and before.boot_id == boot_id",
        "self.same_boot = known",
        _OF_A_FORGOTTEN_OWNER,
    ),
    Mutant(
        "no-wait-after-a-power-cut", "A9",
        "queues are granted while lost grants are still believed",
        _OWNERS_FILE,
        "        if self.start.now.waits:\n",
        "        if False:\n",
        _OF_A_POWER_CUT,
    ),
    Mutant(
        "wait-ends-with-a-kill", "A9", "a kill ends the wait after a power cut",
        _STARTS,
        "waits=before.waits or self.may_have_lost",
        "waits=self.may_have_lost",
        "tests/unit/broker/leases/test_lease_storage.py",
    ),
    Mutant(
        "start-not-counted", "A9", "epochs of two starts can be equal",
        _STARTS,
        "            before.start + 1,\n",
        "            max(1, before.start),\n",
        f"{SIM} {_OF_A_POWER_CUT}",
    ),
    Mutant(
        "generation-not-raised", "P7, A5", "an offset that is used again has the same fence",
        _STARTS,
        "generation=before.generation + self.may_have_lost",
        "generation=before.generation",
        "tests/integration/test_broker_leases.py::"
        "test_a1_what_was_committed_beyond_a_lost_tail_is_not_skipped_later",
    ),
    Mutant(
        "fence-without-generation", "P7, A5", "a fence does not contain the generation of the log",
        "inorder.ordering.fence",
        "    return version << _VERSION_AT | generation << _GENERATION_AT | offset\n",
        "    return version << _VERSION_AT | offset\n",
        "tests/unit/ordering/test_fence.py::test_offsets_that_are_used_again_get_higher_numbers",
    ),
    Mutant(
        "deleted-topic-begins-again", "P7, A5",
        "a topic that is created again repeats its old fences",
        _OFFSETS,
        "                self._journal.retire(topic)\n",
        "                pass\n",
        f"{_IN_LEASES}test_a_deleted_topic_leaves_nothing_and_begins_in_a_new_generation",
    ),
    Mutant(
        "offsets-not-cut", "P4, A1", "an offset beyond the recovered log stays",
        "inorder.broker.broker",
        "cuts = self.offsets.clamp(self.store.end_offset)",
        "cuts = self.offsets.clamp(lambda topic, queue_id: 1 << 40)",
        "tests/integration/test_broker_leases.py::"
        "test_a1_what_was_committed_beyond_a_lost_tail_is_not_skipped_later",
    ),
    Mutant(
        "saved-beyond-the-log", "P1, A1", "saved offsets count although the log has lost its end",
        "inorder.broker.durability",
        "    if depends_on > commit_log.end_position:\n",
        "    if depends_on >= 0:\n        return\n    if depends_on > commit_log.end_position:\n",
        "tests/integration/test_idempotent_restart.py::test_a_file_beyond_the_log_is_dropped_for_good",
    ),
    Mutant(
        "parked-file-before-its-log", "P8, A1", "parked keys are saved before the log is on disk",
        "inorder.broker.durability",
        "            await broker.log_sync.synced()\n",
        "",
        "tests/integration/test_broker_parking.py::test_what_a_power_cut_took_was_not_parked",
    ),
    Mutant(
        "ends-before-the-log", "P9, A1",
        "the ends of a version are saved before the log is on disk",
        "inorder.broker.resizing.service",
        "        await broker.housekeeping.flush_now()\n        until_ms",
        "        until_ms",
        f"{_IN_RESIZING}test_noted_ends_never_lie_behind_a_lost_tail",
    ),
    # Commits and hand-over.
    Mutant(
        "release-forgets-its-commit", "P5", "a release frees the queue but loses its commit",
        _LEASING,
        "            self._take(record)\n        if self._broker.config",
        "            pass\n        if self._broker.config",
    ),
    Mutant(
        "release-before-it-is-safe", "P5", "under sync flush the next owner begins before the sync",
        _LEASING,
        "        if self._broker.config.store.sync_flush:\n            return self._release_when",
        "        if self._broker.config is None:\n            return self._release_when",
        "tests/integration/test_broker_leases.py::"
        "test_p4_under_sync_flush_an_answered_commit_survives_a_power_cut",
    ),
    Mutant(
        "reset-keeps-the-epoch", "A11", "a commit that is under way undoes a reset",
        _OFFSETS,
        "                self._leases.raise_epoch(key, epoch)\n",
        "                pass\n",
        "tests/integration/test_broker_leases.py::"
        "test_a11_a_reset_makes_the_owners_commits_and_its_map_void",
    ),
    Mutant(
        "reset-gives-the-queue-up", "A11, P4", "a replay begins while a handler still runs",
        "inorder.client.consume.rules.leases",
        "    return bool(lease.epoch) and not lease.locked "
        "and lease.phase is Phase.LEAVING\n",
        "    return False\n",
        "tests/integration/test_consumer_leases.py::"
        "test_a11_a_reset_waits_for_a_handler_that_runs_longer_than_the_lease",
    ),
    Mutant(
        "map-of-another-offset", "A11",
        "a finished map counts above an offset that was reset since",
        "inorder.broker.offsets.rules",
        'return last.finished if last is not None and last.offset == offset else ""',
        'return last.finished if last is not None else ""',
        "tests/unit/broker/offsets/test_commit_maps.py",
    ),
    Mutant(
        "commit-by-anybody", "A11", "a RocketMQ client commits a queue that another one has locked",
        "inorder.broker.offsets.rules",
        "    if not may_commit:\n",
        "    if False:\n",
        f"tests/unit/broker/offsets/test_commit_rules.py {_IN_LEASES}"
        "test_a11_while_a_queue_is_leased_nobody_commits_without_the_epoch",
    ),
    Mutant(
        "older-commit-counts", "P4, A11", "an older commit that arrives later counts",
        "inorder.broker.offsets.rules",
        "        return last is None or (epoch, number) > (last.epoch, last.number)\n",
        "        return True\n",
        f"{_IN_LEASES}test_a11_commits_are_taken_in_the_order_of_their_numbers",
    ),
    Mutant(
        "lease-begins-anew", "P6, A15", "every start extends the lease of a dead owner",
        "inorder.broker.leases.rules",
        "    return min(stated_ms, begun_anew_ms) if same_boot and stated_ms else begun_anew_ms\n",
        "    return begun_anew_ms\n",
        f"{SIM} {_IN_FLAPPING}test_a_dead_owners_queue_moves_one_lease_after_the_first_start "
        f"{_IN_FLAPPING}test_a_dead_rocketmq_owners_queue_moves_after_31_s",
    ),
    Mutant(
        "renewal-keeps-the-deadline", "P2, A15",
        "an owner that renewed after a start loses its queue",
        _LEASES,
        "wanted != lease.terms or lease.deadline_ms > 0\n",
        "wanted != lease.terms\n",
        f"{SIM} {_IN_FLAPPING}test_an_owner_that_renews_has_its_whole_lease_from_the_next_start_on",
    ),
    Mutant(
        "fold-brings-the-deadline-back", "P2, A15",
        "folding the journal restores a cancelled deadline",
        _LEASES,
        "        lease.deadline_ms = 0\n",
        "",
        f"{_IN_FLAPPING}test_an_owner_that_renews_has_its_whole_lease_from_the_next_start_on",
    ),
    Mutant(
        "wait-begins-anew", "P6, A15", "every start repeats the wait after a power cut",
        _STARTS,
        "            self.now.waits_until_ms, self.now.longest_ms,",
        "            0, self.now.longest_ms,",
        f"{_IN_FLAPPING}test_the_wait_after_a_power_cut_is_one_wait",
    ),
    Mutant(
        "back-between-two-locks", "P4, A16", "between two locks an offset can go back",
        "inorder.broker.offsets.rules",
        "or (ordered and kind is not CommitKind.TOOL)\n",
        "\n",
        f"{SIM} {_IN_COMEBACKS}test_a_thawed_owner_commits_in_the_gap_before_the_next_lock "
        "tests/unit/broker/offsets/test_commit_rules.py",
    ),
    Mutant(
        "order-is-forgotten-by-a-fold", "P4, A16",
        "folding the journal forgets which groups consume in order",
        _OWNERS_FILE,
        "            yield lease_records.Ordered(*pair)\n",
        "            del pair\n",
        f"{_IN_COMEBACKS}test_a_group_that_once_consumed_in_order_is_known_after_a_restart",
    ),
    Mutant(
        "a-stranger-is-a-tool", "P4, A16", "a client before its first heartbeat counts as a tool",
        "inorder.broker.offsets.rules",
        "    if oneway or member or language in (LanguageCode.GO, LanguageCode.CPP):\n",
        "    if member:\n",
        f"{_IN_COMEBACKS}test_a_thawed_owner_commits_in_the_gap_before_the_next_lock "
        "tests/unit/broker/offsets/test_commit_rules.py",
    ),
    Mutant(
        "commit-beyond-the-end", "P4, A16", "an offset beyond the end of the queue is committed",
        "inorder.broker.offsets.rules",
        "    if offset > end:\n        return Ruling.BEYOND\n",
        "    if offset > end and locked:\n        return Ruling.BEYOND\n",
        f"{_IN_COMEBACKS}test_nobody_commits_messages_that_are_not_there",
    ),
    # The client.
    Mutant(
        "trust-counts-from-the-answer", "A10",
        "a renewed lease counts from the reply, not from the request",
        _CLIENT,
        "            now_ms = self._session.clock.monotonic_ms()\n            found",
        "            now_ms = sent_ms = self._session.clock.monotonic_ms()\n            found",
        "tests/integration/test_lease_counting.py::"
        "test_a10_trust_counts_from_the_sending_not_from_the_answer",
    ),
    Mutant(
        "trust-beyond-the-grace", "A10",
        "handlers start until the lease ends, not until the grace ends",
        _TENURE,
        "        return min(self.lease_ms, self.grace_ms)\n",
        "        return self.lease_ms\n",
        f"tests/unit/client/consume/rules/test_lease_requests.py {_IN_CONSUMERS}"
        "test_a10_no_handler_starts_when_the_lease_is_unconfirmed",
    ),
    Mutant(
        "start-in-doubt", "P2", "handlers start although the lease is unconfirmed",
        _TENURE,
        "        return self.locked and now_ms - self.lock_sent_ms <= self._trusted_ms\n",
        "        return self.locked\n",
        "tests/unit/client/consume/rules/test_lease_state.py",
    ),
    Mutant(
        "goes-on-after-a-loss", "P2, O25", "a lost queue is not dropped",
        _TENURE,
        "        self.locked = False\n        self.drop(RevokeReason.LOCK_LOST)\n",
        "        self.drop(RevokeReason.MOVED)\n        self.dropped = None\n",
        "tests/integration/test_consumer_leases.py::"
        "test_p2_a_frozen_owner_loses_its_queue_and_commits_nothing",
    ),
    Mutant(
        "released-while-handled", "P5", "a release does not wait for the running handler",
        "inorder.client.consume.rules.assignment",
        "    if lease.is_waited_for(ordered=ordered):\n        return (Release.WAIT,)\n",
        "",
        "tests/unit/client/consume/rules/test_rebalance.py",
    ),
    Mutant(
        "context-of-the-caller", "P5", "the loop is woken in the context of the caller",
        "inorder.sync.portal",
        "self._loop.call_soon_threadsafe(self._drain, context=Context())",
        "self._loop.call_soon_threadsafe(self._drain)",
        "tests/unit/sync/test_portal.py::test_the_loop_is_woken_in_an_empty_context",
    ),
    Mutant(
        "handler-for-ever", "P5", "a task that a handler started counts as a handler after its end",
        "inorder.client.consume.workers",
        "    call.running = False\n",
        "",
        "tests/integration/test_consumer_closing.py::"
        "test_a_task_that_outlives_its_handler_waits_for_the_end",
    ),
    Mutant(
        "begun-after-close", "P5", "close inside a handler lets the next messages begin",
        "inorder.client.consume.service",
        "        self.member.changed.set()\n        self.member.drop_all()\n",
        "        self.member.changed.set()\n",
        "tests/integration/test_consumer_closing.py::"
        "test_a_handler_that_awaits_a_task_which_closes_does_not_wait_for_itself",
    ),
    Mutant(
        "closed-before-it-is", "P5", "a second close returns before the first has ended",
        "inorder.client.consume.consumer",
        "        if not in_handler(self):\n            assert self._closing is not None\n",
        "        if not in_handler(self) and not self._stop_asked.is_set():\n"
        "            assert self._closing is not None\n",
        "tests/integration/test_blocking_consumer.py::test_several_close_at_once",
    ),
    # Order of handling.
    Mutant(
        "two-of-a-key", "P3", "the next message of a key starts beside the running one",
        _KEYED,
        "        else:\n            backlog.messages.append(message)\n",
        "        else:\n            self._backlogs[key] = _Backlog(deque((message,)))\n"
        "            self._make_ready(key, self._backlogs[key])\n",
        "tests/integration/test_consumer_keyed.py::"
        "test_keys_run_beside_each_other_and_each_in_order",
    ),
    Mutant(
        "commit-passes-unfinished", "P4",
        "the highest finished offset is committed, not the lowest",
        "inorder.client.consume.rules.queue",
        "            self.done_below = self.lowest\n",
        "            self.done_below = max(self.lowest, *(m.offset + 1 for m in messages), 0)\n",
        "tests/property/test_cached_messages_model.py",
    ),
    Mutant(
        "map-forgets", "P4", "messages finished above the offset are not committed",
        "inorder.client.consume.rules.queue",
        "        return Progress(finished.base, finished.above_text())\n",
        "        return Progress(finished.base + finished.span, \"\")\n",
        "tests/integration/test_consumer_leases.py::"
        "test_the_map_of_a_busy_queue_is_committed_every_second",
    ),
    Mutant(
        "barrier-ignored", "P3", "a message without a key does not wait for earlier messages",
        _KEYED,
        "if self._behind or _BARRIER in self._backlogs or (key is _BARRIER and self._backlogs):",
        "if self._behind or _BARRIER in self._backlogs:",
        "tests/property/test_keyed_model.py",
    ),
    Mutant(
        "stop-is-not-looked-at", "P2, P5", "a run goes on although its queue was given up",
        "inorder.client.consume.workers",
        "        if not self.may_start(now_ms):\n            return None\n",
        "",
        f"{_OF_RUNS}test_lease_and_stop_are_looked_at_before_each_call",
    ),
    Mutant(
        "neighbours-are-done", "P3, P4", "a failure marks the rest of its run done",
        "inorder.client.consume.ordered",
        "        whole, works = self._split(run.works, handled)\n",
        "        whole, works = self._split(run.works, sum(map(len, run.batches)) - failed)\n",
        f"{_OF_RUNS}test_a_failure_marks_its_message_alone",
    ),
    Mutant(
        "untried-messages-count", "P8", "messages behind a failed one of their list count attempts",
        "inorder.client.consume.rules.outcomes",
        "    return CallParts(result.count, 1)\n",
        "    return CallParts(result.count, batch - result.count)\n",
        f"{_OF_RUNS}test_a_list_says_which_messages_are_done {_IN_ORDERED}"
        "test_a_list_says_which_of_its_messages_failed",
    ),
    Mutant(
        "list-is-done", "P3, P4", "a list is done although its handler names a failed message",
        "inorder.client.consume.workers",
        "            if value.count >= len(self.batches[self.done]):\n",
        "            if value.error is not None:\n",
        f"{_OF_RUNS}test_a_list_says_which_messages_are_done {_IN_ORDERED}"
        "test_a_list_says_which_of_its_messages_failed",
    ),
    Mutant(
        "a-running-key-is-given-away", "P3", "messages behind a running one of their key are free",
        _KEYED,
        "        backlog.running = keep\n",
        "        backlog.running = keep\n        self._make_ready(work.order_key, backlog)\n",
        f"{_OF_RUNS}test_keys_behind_a_long_call_go_to_other_workers",
    ),
    # Parking.
    Mutant(
        "park-twice", "P8, A8", "a repeated park request is stored again",
        _PARKING,
        "        if offset < floor or (queue is not None and offset in queue.origins):\n",
        "        if offset < floor:\n",
        "tests/integration/test_broker_parking.py::test_parking_again_parks_nothing_again",
    ),
    Mutant(
        "unpark-a-list-that-grew", "P8, A8", "a key goes live although its list is not empty",
        _PARKING,
        "        if one.messages or one.end > end:\n",
        "        if False:\n",
        "tests/integration/test_broker_parking.py::"
        "test_an_unpark_of_a_list_that_grew_is_refused",
    ),
    Mutant(
        "parked-key-overtaken", "P8", "messages of a parked key are handled on arrival",
        _KEYED,
        "parked = name is not None and (backlog.maybe_parked or name in self.parked)",
        "parked = False",
        "tests/integration/test_consumer_parking.py::"
        "test_a_bad_key_is_parked_and_the_others_flow",
    ),
    Mutant(
        "join-of-a-live-key", "P8, A8", "a message that should join a parked key parks a live one",
        _PARKING,
        '        if joins and not parked:\n            return Verdict.LIVE, ""\n',
        "",
        "tests/unit/broker/parking/test_parking_rules.py tests/property/test_parking_model.py",
    ),
    Mutant(
        "parked-is-not-done", "P8, A8", "the next owner does not learn which messages are parked",
        _PARKING,
        "        for origin in sorted(queue.origins if queue is not None else ()):\n",
        "        for origin in sorted(()):\n",
        "tests/property/test_parking_model.py tests/integration/test_consumer_parking.py",
    ),
    Mutant(
        "handlers-before-parked-keys", "P8, A8",
        "an owner starts handlers before it knows the parked keys",
        "inorder.client.consume.parking",
        "        if not assigned.leased or assigned.parked <= view.version:\n",
        "        if view is not None:\n",
        "tests/integration/test_consumer_parking.py",
    ),
    Mutant(
        "unsure-join-is-handled", "P8, A8",
        "a join without a reply is handled as if its key were live",
        _KEYED,
        "        backlog.maybe_parked = maybe_parked\n",
        "        backlog.maybe_parked = False\n",
        "tests/property/test_parking_model.py tests/integration/test_consumer_parking.py",
    ),
    Mutant(
        "unsure-park-is-handled", "P8, A8",
        "a message whose park request has no reply is tried again",
        "inorder.client.consume.parking",
        "        while not outcome and assigned.live:\n",
        "        for _ in range(1):\n",
        "tests/integration/test_consumer_parking.py",
    ),
    Mutant(
        "park-without-epoch", "P8", "a former owner parks a key",
        "inorder.broker.parking.handlers",
        "        _check_owner(broker, call.connection, place, request)\n"
        "        before = parking.table.version(*place)\n        outcomes",
        "        before = parking.table.version(*place)\n        outcomes",
        "tests/integration/test_broker_parking.py",
    ),
    Mutant(
        "unpark-without-epoch", "P8, A8", "a former owner unparks a key",
        "inorder.broker.parking.handlers",
        "            _check_owner(call.broker, call.connection, place, request)\n"
        "        before = parking.table.version(*place)\n        why",
        "            pass\n        before = parking.table.version(*place)\n        why",
        "tests/integration/test_broker_parking.py",
    ),
    Mutant(
        "older-list-later", "P9, A8", "a key goes live before its list in the old queue is empty",
        _PARKING,
        "        if one.older:\n",
        "        if False:\n",
        "tests/unit/broker/parking/test_parking_rules.py tests/integration/test_broker_parking.py",
    ),
    Mutant(
        "moved-key-redriven-at-home", "P9, A8", "the owner of the old queue unparks a moved key",
        _PARKING,
        "        if not successor and one.moved_to is not None:\n",
        "        if False:\n",
        "tests/unit/broker/parking/test_parking_rules.py tests/integration/test_broker_parking.py",
    ),
    Mutant(
        "redriven-side-by-side", "P8, A8", "a key is redriven twice at the same time",
        "inorder.client.consume.parking",
        "        wanted = self.parker.view(assigned).wanted(self._active.get(assigned, ()))\n",
        "        wanted = self.parker.view(assigned).wanted(())\n",
        "tests/integration/test_consumer_parking.py::test_of_two_operators_one_redrive_comes",
    ),
    Mutant(
        "stale-pointer-is-followed", "P8, A8", "a redrive drains a queue in which the key is live",
        "inorder.client.consume.parking",
        "                return list(one.older) if one.moved else None\n",
        "                return list(one.older)\n",
        "tests/unit/client/consume/rules/test_redriving_lists.py::"
        "test_a_pointer_to_a_queue_where_the_key_lives_drains_nothing_there "
        "tests/integration/test_resizing_parked.py::"
        "test_a_key_whose_owner_died_before_it_forgot_its_older_list_is_redriven",
    ),
    Mutant(
        "parked-keys-stay-behind", "P9, A8",
        "a group is released before its parked keys have moved",
        "inorder.broker.resizing.release",
        "        if self._moved.get((topic, group), 0) >= version:\n            return True\n",
        "        if version:\n            self._moved[topic, group] = version\n"
        "            return True\n",
        "tests/integration/test_resizing_parked.py::test_a_parked_key_moves_and_nothing_overtakes",
    ),
    Mutant(
        "fence-of-the-copy", "P7", "a redriven message has the fence of its copy",
        "inorder.client.consume.rules.parking",
        "None if sequence is None else int(sequence), epoch",
        "None, epoch",
        "tests/integration/test_consumer_parking.py",
    ),
    Mutant(
        "parked-before-it-is-safe", "A1", "a parked message counts before it is on disk",
        "inorder.broker.parking.service",
        "                self._pending[pending] = None\n",
        "                self._pending[pending] = None\n"
        "                for group, event, position in pending.events:\n"
        "                    self.table.apply(group, event, position)\n",
        "tests/integration/test_broker_parking.py",
    ),
    Mutant(
        "anybody-sends-to-park-topics", "P8", "a client's message counts as a parked one",
        "inorder.broker.sends.checks",
        "if name in NOT_SENDABLE_TOPICS or name.startswith(PARK_PREFIX):",
        "if name in NOT_SENDABLE_TOPICS:",
        "tests/integration/test_broker_parking.py",
    ),
    # Resizing.
    Mutant(
        "no-gate", "P9, A6", "a group reads the next version before it has finished this one",
        _RESIZING,
        "    if version >= now.version:\n        return None\n    return next(",
        "    if version >= 0:\n        return None\n    return next(",
        "tests/integration/test_resizing.py",
    ),
    Mutant(
        "chapters-are-let-go", "P9, A6", "a broker forgets a version that other brokers still hold",
        "inorder.broker.resizing.rules",
        "    if brokers_of(now) <= {name}:\n",
        "    if name:\n",
        "tests/integration/test_resizing.py::"
        "test_a_broker_without_older_messages_holds_a_group_after_a_restart",
    ),
    Mutant(
        "closed-to-latecomers", "P9, A6, O2",
        "closed queues stay closed to a group that comes late",
        "inorder.broker.resizing.service",
        "        wanted = max(count, rules.queues_left(now, first, of=waiting), parked)\n",
        "        wanted = max(count, parked)\n",
        "tests/integration/test_resizing.py::"
        "test_a_group_that_comes_after_queues_were_removed_reads_them",
    ),
    Mutant(
        "reset-does-not-rest", "P9, A11", "a replay begins while the key's new queue is still read",
        "inorder.broker.offsets.handlers",
        "    if version is not None:\n        return _answer_noted(",
        "    if version == -1:\n        return _answer_noted(",
        _REWINDING + "::test_a_replay_does_not_begin_beside_a_handler_in_the_keys_new_queue",
    ),
    Mutant(
        "one-broker-rests", "P9, A11", "the other brokers do not learn that a group was rewound",
        "inorder.broker.resizing.rules",
        "one.rewind_number < number or one.version > version",
        "one.rewind_number > number",
        "tests/unit/broker/resizing/test_rewinding_rules.py::test_brokers_agree",
    ),
    Mutant(
        "rest-without-waiting", "P4, A11", "a replay begins while older handlers still run",
        "inorder.broker.resizing.release",
        "(one.is_revoked or one.owner == NOBODY)",
        "one.owner is None",
        _REWINDING + "::test_a_replay_does_not_begin_beside_a_handler_in_the_keys_new_queue",
    ),
    Mutant(
        "rest-is-not-on-disk", "P9, A11", "a killed broker forgets that a group is paused",
        "inorder.broker.resizing.release",
        "        await self._resizing.change(topic, rule)\n",
        "        self._resizing.topics[topic] = rule(self._resizing.versions(topic))\n",
        _REWINDING + "::test_a_pause_outlives_a_restart",
    ),
    Mutant(
        "release-of-an-older-term", "P9, A11", "a release that was found before a rewind counts",
        _RESIZING,
        "(before.rests or rewind_number < before.term)",
        "before.rests",
        "tests/unit/broker/resizing/test_rewinding_rules.py",
    ),
    Mutant(
        "release-from-before-a-reset", "P9, A11",
        "a broker that was done before a rewind releases the others",
        "inorder.broker.resizing.release",
        "            return  # rewound meanwhile",
        "            pass  # rewound meanwhile",
        _REWINDING
        + "::test_a_release_that_was_under_way_when_a_group_was_rewound_does_not_count",
    ),
    Mutant(
        "skipped-is-not-waited-for", "P4, A11",
        "the next version begins while skipped messages are handled",
        "inorder.broker.resizing.rules",
        "            if low < min(high, past.ends.get(queue_id, 0)):\n",
        "            if max(offset, begin) == low < min(high, past.ends.get(queue_id, 0)):\n",
        _REWINDING + "::test_the_next_version_waits_for_a_handler_of_what_was_skipped",
    ),
    Mutant(
        "past-owner-goes-on", "P4, A11", "a lease that expired before a reset is resumed",
        _LEASING,
        "        self._journal.write([lease_records.freed(key, self._broker.config.name)])\n"
        "        self._table.forget_past(key)\n        return True\n",
        "        return True\n",
        _REWINDING + "::test_a_lease_that_had_run_out_before_is_not_taken_up_again",
    ),
    Mutant(
        "newer-keys-are-redriven", "P8, A11", "a parked key is handled before its older messages",
        "inorder.broker.resizing.rules",
        "    if later and not begun:\n",
        "    if False:\n",
        f"tests/unit/broker/resizing/test_rewinding_rules.py {_STORIES}",
    ),
    Mutant(
        "newer-lists-do-not-block", "P8, P9, A11",
        "a group is released although a key has newer parked lists",
        "inorder.broker.resizing.rules",
        "    later = any(by > version for by in one.older.values()) or (\n",
        "    later = (\n",
        f"tests/unit/broker/resizing/test_rewinding_rules.py {_STORIES}",
    ),
    Mutant(
        "moved-by-any-version", "P8, P9, A11", "a key that moved later counts as moved before",
        "inorder.broker.resizing.rules",
        "        one.moved_to != to or one.moved_by not in (0, next_version)",
        "        one.moved_by < 0",
        f"tests/unit/broker/resizing/test_rewinding_rules.py {_STORIES}",
    ),
    Mutant(
        "newer-lists-come-first", "P8, A11", "a redrive drains a list that is newer than its own",
        "inorder.broker.parking.rules",
        "        return [place for place, by in came if version is None or by <= version]\n",
        "        return [place for place, _ in came]\n",
        "tests/unit/broker/parking/test_parking_rules.py",
    ),
    Mutant(
        "redriven-before-its-replay", "P8, A11",
        "a redrive does not wait for messages that are replayed",
        "inorder.broker.parking.moves",
        "        return floor if floor < min(",
        "        return None if floor < min(",
        "tests/integration/test_parked_resets.py::"
        "test_a_redrive_waits_for_what_a_reset_brings_again "
        "tests/integration/test_parked_resets.py::"
        "test_also_what_was_finished_above_the_offset_is_waited_for "
        "tests/integration/test_broker_parking.py::"
        "test_a_redrive_reads_nothing_that_waits_for_older_messages",
    ),
    Mutant(
        "reset-of-what-is-known", "P8, A11",
        "after a restart a reset of parked messages is forgotten",
        "inorder.broker.parking.service",
        "            # Even if the queue is not in the table: a start replays",
        "            if place not in self.table.places:\n                return\n"
        "            # And replays",
        "tests/integration/test_broker_parking.py::"
        "test_a_reset_counts_for_what_was_parked_after_a_restart_too",
    ),
    Mutant(
        "heir-done-before-a-reset", "P8, A11",
        "messages a successor handled before a reset count as done",
        "inorder.broker.parking.service",
        "held = self.redrive_scope.held(place, self.floor(place)) if successor else None\n",
        "held = None\n",
        f"{_STORIES}::"
        "test_after_a_reset_a_key_comes_in_order_whatever_was_parked_and_wherever_it_lies",
    ),
    Mutant(
        "full-in-a-replay", "P8, A11", "a replay does not get the higher limits of parked keys",
        "inorder.broker.parking.rules",
        "self.limits.for_replay if queue and offset < queue.replay_until else self.limits\n",
        "self.limits\n",
        "tests/integration/test_parked_resets.py::"
        "test_a_rewound_group_at_a_limit_continues",
    ),
    Mutant(
        "reset-that-others-do-not-know", "P9, A11",
        "a reset is answered before all brokers know it",
        "inorder.broker.offsets.handlers",
        "    await broker.resizing.rewinding.tell(topic, group)\n",
        "",
        "tests/integration/test_resets_elsewhere.py::"
        "test_nothing_newer_is_given_once_a_reset_is_answered",
    ),
    Mutant(
        "no-owner-for-a-redrive", "P8, A11",
        "a removed queue with parked keys has no owner for a redrive",
        "inorder.broker.resizing.service",
        "        wanted = max(count, rules.queues_left(now, first, of=waiting), parked)\n",
        "        wanted = max(count, rules.queues_left(now, first, of=waiting))\n",
        "tests/integration/test_rewinding_parked.py::"
        "test_a_removed_queue_has_an_owner_for_a_redrive",
    ),
    Mutant(
        "redrive-is-not-seen", "P8, A11", "an owner does not notice that a redrive may begin",
        "inorder.client.consume.parking",
        "not view.wanted(()):\n            view.version = UNKNOWN\n",
        "not view.wanted(()):\n            pass\n",
        f"tests/unit/client/consume/rules/test_redriving_lists.py {_STORIES}",
    ),
    Mutant(
        "stop-forgets-the-plan", "A6", "a second plan is accepted while one is under way",
        _RESIZING,
        "        raise _under_way(now.plan)\n    if plan.version",
        "        pass\n    if plan.version",
        "tests/unit/broker/resizing/test_resizing_rules.py",
    ),
    Mutant(
        "two-plans-are-decided", "P9, A6", "the last plan counts, not the first",
        _RESIZING,
        "    check_next(now, plan)\n"
        "    return now if now.plan is not None else replace(now, plan=plan)\n",
        "    return replace(now, plan=plan)\n",
        f"{_IN_RESIZING}test_of_two_coordinators_one_decides",
    ),
    Mutant(
        "stop-is-not-on-disk", "P9, A6", "a killed broker opens the version that it had stopped",
        "inorder.broker.resizing.service",
        "        content = self._table.encode_with(topic, new)\n"
        "        await self._broker.offload.call(lambda: self._file.save(content))\n",
        "",
        f"{_IN_RESIZING}test_what_is_stopped_stays_stopped_over_a_kill",
    ),
    Mutant(
        "released-by-one-broker", "P9, A6", "a group is released before it is done on all brokers",
        _RESIZING,
        "    if version > done:\n",
        "    if version > now.version:\n",
        f"{_IN_RESIZING}test_a_group_waits_for_all_brokers",
    ),
    Mutant(
        "taken-back-too-late", "P9, A6", "a resize is aborted although brokers may have opened it",
        _RESIZING,
        "    if mine and now.going:\n",
        "    if False:\n",
        "tests/integration/test_resize_abort.py::"
        "test_a_plan_that_may_be_open_somewhere_is_finished_not_aborted",
    ),
    Mutant(
        "late-stop-of-what-was-taken-back", "P9, A6", "a broker stops for a plan that was aborted",
        _RESIZING,
        "    if plan_id in now.withdrawn:\n        raise",
        "    if False:\n        raise",
        "tests/integration/test_resize_abort.py::"
        "test_a_late_request_of_an_aborted_plan_is_refused",
    ),
    Mutant(
        "opened-without-asking", "P9, A6",
        "brokers open a plan that the first one may still withdraw",
        "inorder.client.rules.resizing",
        "    if not first.going:\n        return Go(name, plan)\n",
        "",
        "tests/unit/client/rules/test_resizing_steps.py",
    ),
    # Delays.
    Mutant(
        "delayed-stays-behind", "P9, A7",
        "a delayed message goes to the queue that its key has left",
        _RESIZING,
        "            return newest.queue(key)\n",
        "            return queue\n",
        f"{_IN_RESIZING}test_a_delayed_message_follows_its_key",
    ),
    Mutant(
        "delayed-comes-twice", "P1, A7",
        "a start delivers messages that were delivered before a kill",
        "inorder.broker.delays.storage",
        "            delays.advance(level, offset + 1)\n",
        "            pass\n",
        "tests/integration/test_broker_delays.py::"
        "test_what_waits_survives_a_restart_and_comes_once",
    ),
    # Transactions.
    Mutant(
        "lost-records-are-not-looked-for", "P1",
        "a start believes the records of ended halves alone; the last ones may be lost",
        _TRANSACTIONS + ".storage",
        "        ends = list(_read_log(store, max(first, ended_before)))\n",
        "",
        f"{_IN_TRANSACTIONS}test_a_commit_whose_record_is_lost_is_found_in_the_log",
    ),
    Mutant(
        "older-half-is-not-known", "P1",
        "a half that is put back does not name the first one: both are committed",
        _TRANSACTIONS + ".records",
        "    kept = _marked(without(record.properties, (*_SEND_PROPERTIES, _CHECKS)), half)\n",
        "    kept = without(record.properties, (*_SEND_PROPERTIES, _CHECKS))\n",
        "tests/unit/broker/transactions/test_transaction_records.py::"
        "test_every_copy_names_the_first_half_and_no_send",
    ),
    Mutant(
        "two-ends-at-once", "P1",
        "a second commit that comes before the first one is stored is stored, too",
        _TRANSACTIONS + ".service",
        "        if isinstance(ending, _Ending):\n",
        "        if False:\n",
        f"{_IN_TRANSACTIONS}test_an_end_that_comes_again_has_its_effect_once",
    ),
    Mutant(
        "ended-before-too-much", "P1",
        "a record of ended halves covers a commit that is not in it",
        _TRANSACTIONS + ".service",
        "            ended_before = min(ended_before, ending.position)\n",
        "            pass\n",
        "tests/integration/test_broker_transactions.py::"
        "test_a_record_of_ended_halves_covers_no_end_that_is_being_stored",
    ),
    Mutant(
        "commit-by-an-older-map", "P9, A7",
        "a committed message goes to the queue that its key has left",
        _TRANSACTIONS + ".service",
        "            name, queue_id = broker.resizing.placement.home(*home, record.properties)\n",
        "            name, queue_id = broker.config.name, home[1]\n",
        f"{_IN_RESIZING}test_a_transaction_joins_its_key_where_it_is_when_it_is_committed",
    ),
    Mutant(
        "pending-half-is-deleted", "P1",
        "retention deletes the log file of a half that is pending",
        "inorder.broker.housekeeping",
        "            broker.transaction_service.keep_from,\n",
        "",
        f"{_IN_TRANSACTIONS}test_retention_keeps_a_half_that_is_pending",
    ),
    Mutant(
        "copy-counts-too-early", "P1",
        "retention deletes a half whose copy a power cut may take",
        _TRANSACTIONS + ".rules",
        "if one.copy_position >= durable]\n",
        "if False]\n",
        "tests/unit/broker/transactions/test_transaction_rules.py::"
        "test_where_the_log_must_begin",
    ),
    Mutant(
        "half-is-read-too-early", "P1",
        "a half whose tick has not ended is dropped as gone from the log",
        _TRANSACTIONS + ".service",
        "        self.half.storing = True\n",
        "        pass\n",
        f"{_IN_TRANSACTIONS}test_a_half_that_is_being_stored_is_not_asked_about_yet",
    ),
    # Timers.
    Mutant(
        "timer-comes-twice", "P1, A7",
        "a start delivers timers that were delivered before a kill",
        "inorder.broker.timers.storage",
        "            or not table.was_delivered(offset, entry[2])\n",
        "",
        f"{_IN_TIMERS}test_what_waits_survives_a_restart_and_comes_once",
    ),
    Mutant(
        "timer-comes-early", "A7", "a timer comes a tenth of a second before its time",
        "inorder.broker.timers.rules",
        "        last = code_of(now_ms)\n",
        "        last = code_of(now_ms + 100)\n",
        "tests/unit/broker/timers/test_timer_rules.py::test_none_is_taken_before_its_millisecond",
    ),
    Mutant(
        "timer-forgets-its-recall", "A7", "a restart forgets a recall, and the message comes",
        "inorder.broker.timers.rules",
        "        self.recalled = dict(saved.recalled)\n",
        "",
        "tests/property/test_timer_model.py tests/unit/broker/timers/test_timer_rules.py",
    ),
    Mutant(
        "timer-behind-the-horizon", "A7", "a timer that arrives while a part is read is lost",
        "inorder.broker.timers.rules",
        "        elif point < self._reach:\n",
        "        elif point < self.horizon:\n",
        "tests/property/test_timer_model.py tests/unit/broker/timers/test_timer_rules.py",
    ),
    Mutant(
        "timer-stays-behind", "P9, A7", "a timer goes to the queue that its key has left",
        "inorder.broker.timers.service",
        "self._broker.resizing.placement.home(*home, record.properties)",
        "(self._broker.config.name, home[1])",
        f"{_IN_RESIZING}test_a_timer_follows_its_key",
    ),
    # POP.
    Mutant(
        "batch-is-forgotten-by-a-kill", "P2, O20", "a batch is in memory alone: a kill forgets it",
        _POPPING + ".service",
        "[batch_record(one.key, one.batch, end) for one in new if one.batch is not None],\n",
        "[],\n",
        f"pops {_IN_POPS}test_o20_a_batch_is_known_after_its_broker_died",
    ),
    Mutant(
        "stale-pop-acknowledges", "P2, O19",
        "an acknowledgement under an older token counts for the batch of now",
        _POPPING + ".rules",
        "    if batch is None or batch.pop_ms != pop_ms:\n",
        "    if batch is None:\n",
        f"pops {_IN_POPS}test_o19_who_is_late_changes_and_acknowledges_nothing",
    ),
    Mutant(
        "late-pop-is-told-success", "P4",
        "an acknowledgement of a message whose copy is in the retry topic is answered with success",
        _POPPING + ".acks",
        "            refusal = _OVER\n        known = [",
        "            pass\n        known = [",
        f"pops {_IN_POPS}test_a_late_acknowledgement_is_refused_or_ends_it",
    ),
    Mutant(
        "acknowledged-while-it-is-revived", "P4",
        "an acknowledgement counts though the copy of the message is on its way to the disk",
        _POPPING + ".rules",
        "        return [one for one, point in found if not point.reviving]\n",
        "        return [one for one, point in found]\n",
        f"{_IN_POPS}test_an_acknowledgement_at_the_end_of_the_time_counts_or_is_refused",
    ),
    Mutant(
        "batch-commits-its-end", "P4, O20",
        "an acknowledgement commits the whole batch, also what is not acknowledged",
        _POPPING + ".rules",
        "        return left[0] if left else self.offsets[-1] + 1\n",
        "        return self.offsets[-1] + 1\n",
        f"pops {_IN_POPS}test_o20_a_batch_is_known_after_its_broker_died "
        f"{_IN_POPS}test_a_batch_holds_its_queue_until_all_of_it_is_acknowledged",
    ),
    Mutant(
        "attempt-is-not-known", "P3, O19",
        "an attempt whose answer was lost does not get its batch again",
        _POPPING + ".service",
        "            again = self._again(pop, topic)\n",
        "            again = None\n",
        f"pops {_IN_POPS}test_the_same_attempt_has_the_same_batch",
    ),
    Mutant(
        "token-comes-twice", "P2, O19", "a clock that goes back makes two pops of one token",
        _POPPING + ".rules",
        "queue is None else queue.last_pop_ms) + 1)\n",
        "queue is None else queue.last_pop_ms))\n",
        f"pops {_IN_POPS}test_tokens_grow_though_the_clock_goes_back",
    ),
    Mutant(
        "lease-beside-popped-messages", "P2",
        "a queue is locked or leased while messages of it are out",
        "inorder.broker.leases.rules",
        "        if owner != POPPED and self._is_popped(key):\n",
        "        if False:\n",
        f"{_IN_POPS}test_no_lock_while_messages_without_order_are_out",
    ),
    Mutant(
        "offset-passes-what-is-out", "P4", "the offset moves on when messages are popped",
        _POPPING + ".rules",
        "        return heap[0] if heap else self.cursor\n",
        "        return self.cursor\n",
        f"pops {_IN_POPS}test_what_is_acknowledged_never_comes_again_and_the_rest_does",
    ),
    Mutant(
        "redelivery-is-not-counted", "P8", "a message that comes again does not say how often",
        _POPPING + ".records",
        "        redeliveries=record.redeliveries + 1,\n",
        "        redeliveries=record.redeliveries,\n",
        f"pops {_IN_POPS}test_what_is_acknowledged_never_comes_again_and_the_rest_does",
    ),
    # Sending.
    Mutant(
        "version-before-duplicate", "A4", "a retry over a map change is refused and stored twice",
        _NUMBERING,
        "        producer_id, items, keyed = found\n",
        "        self._check_map(request.topic, command)\n"
        "        producer_id, items, keyed = found\n",
        "tests/integration/test_idempotent_sends.py::"
        "test_an_older_map_version_is_refused_but_a_duplicate_is_not",
    ),
    Mutant(
        "unknown-is-sent-elsewhere", "P1, A4", "a send whose outcome is unknown follows a new map",
        "inorder.client.send.router",
        "        if not queue.drained or queue.held:\n            return\n",
        "",
        "tests/unit/client/send/test_key_map_client.py::"
        "test_a_message_stored_under_the_old_map_is_not_stored_again",
    ),
    Mutant(
        "predecessor-not-checked", "P1, A2", "a named send is stored before its predecessor",
        "inorder.ordering.sequence",
        "else before == last < number\n",
        "else last < number\n",
        f"{_IN_SENDS}test_a_named_producer_grows_with_gaps",
    ),
    Mutant(
        "any-message-is-the-duplicate", "P1, A3", "a sequence number confirms any message",
        _NUMBERING,
        "        if not named and first != unique:\n",
        "        if False:\n",
        f"{_IN_SENDS}test_a_number_used_for_another_message_is_an_error",
    ),
    Mutant(
        "incarnation-not-checked", "A3", "a stalled copy of an older connection is stored",
        "inorder.broker.producers.rules",
        "        if incarnation < producer.highest:\n",
        "        if False:\n",
        "tests/integration/test_idempotent_sends.py::test_the_older_connection_is_fenced_off",
    ),
    Mutant(
        "duplicates-stored", "P1", "a resent message is stored again",
        "inorder.ordering.sequence",
        "    done = sum(number <= known for number, _ in numbers)\n",
        "    done = 0\n",
        "tests/unit/ordering/test_sequence.py",
    ),
    # Messages of single calls that share a request.
    Mutant(
        "batches-without-the-capability", "P1, A18",
        "a broker that does not name what it refuses gets requests of several calls",
        _QUEUES,
        "        self.batching = idempotent and batches and not self.named\n",
        "        self.batching = idempotent and not self.named\n",
        f"{_IN_BATCHES}test_a_broker_without_the_capability_gets_them_one_by_one",
    ),
    Mutant(
        "neighbours-go-together-again", "A18",
        "after a refusal that names no message the same request goes again",
        "inorder.client.send.sender",
        "            send.joins = named\n",
        "",
        f"{_IN_BATCHES}test_a_refusal_of_all_fails_each",
    ),
    Mutant(
        "neighbours-share-the-refusal", "A18", "a refusal for one message drops the whole request",
        "inorder.client.send.sender",
        "            queue.refuse(send, final=named and at == index)\n"
        "        if named:\n"
        "            self.router.failed(sends[index], error)\n",
        "            queue.refuse(send, final=True)\n"
        "            self.router.failed(send, error)\n"
        "        if named:\n"
        "            pass\n",
        _IN_BATCHES.removesuffix("::"),
    ),
    Mutant(
        "stored-is-sent-again", "P1, A18", "what the broker says it has goes out once more",
        _QUEUES,
        "            elif stored and _place(one, since, offsets) >= 0:\n",
        "            elif stored and _place(one, since, offsets) >= 1 << 62:\n",
        f"{_IN_BATCHES}test_what_is_stored_is_not_sent_again_after_a_lost_answer",
    ),
    Mutant(
        "unknown-counts-as-not-stored", "P1, A18",
        "after an unknown answer all messages of the request go again under new numbers",
        "inorder.client.send.sender",
        "                queue.outcome_unknown(send)\n            queue.ready",
        "                queue.refuse(send, final=False)\n            queue.ready",
        _IN_BATCHES.removesuffix("::"),
    ),
    Mutant(
        "chosen-shares-with-the-map", "A13, A18",
        "messages whose callers chose the queue travel under a key map's version",
        _QUEUES,
        "                if placed and send.placed:\n",
        "                if placed and send.placed is None:\n",
        f"{_IN_BATCHES}test_by_map_and_chosen_by_the_caller_never_share",
    ),
    Mutant(
        "one-sysflag-for-all", "A18", "a compressed body travels under the flags of a plain one",
        _QUEUES,
        "if not send.joins or part.sys_flag != sys_flag or left < 0",
        "if not send.joins or left < 0",
        f"{_IN_BATCHES}test_a_request_has_one_sysflag_and_nothing_delayed",
    ),
    Mutant(
        "compiled-mixes-maps", "A13, A18", "the module puts messages of two maps into one request",
        _NATIVE,
        "                or self.field(send, SEND_PLACED) != placed\n",
        "",
        f"{_IN_TWINS}test_only_what_is_alike_is_taken",
    ),
    Mutant(
        "compiled-mixes-flags", "A18", "the module puts bodies of two flags into one request",
        _NATIVE,
        "                or self.part_field(part, PART_SYS_FLAG) != sys_flag\n",
        "",
        f"{_IN_TWINS}test_only_what_is_alike_is_taken",
    ),
    Mutant(
        "compiled-numbers-the-cancelled", "P1, A18",
        "the module sends a message whose caller went away",
        _NATIVE,
        "                or self.is_done(self.field(send, SEND_WAITER))\n            ):\n",
        "            ):\n",
        f"{_IN_TWINS}test_only_what_is_alike_is_taken",
    ),
    Mutant(
        "compiled-takes-no-room", "A18", "messages that the module makes do not count",
        _NATIVE,
        "        self.tally.count(1, size)\n",
        "",
        f"{_IN_TWINS}test_the_module_makes_plain_messages",
    ),
    Mutant(
        "more-in-flight-than-remembered", "P1, A18", "requests of many messages exceed the window",
        _QUEUES,
        "        most = min(REQUEST_MESSAGES_MAX, WINDOW_MAX - self.messages + 1)\n",
        "        most = REQUEST_MESSAGES_MAX\n",
        f"{_IN_BATCHES}"
        "test_full_requests_do_not_wait_and_1024_messages_are_in_flight_at_most",
    ),
    Mutant(
        "places-told-before-the-sync", "P1, A1, A18",
        "the answer that stands for receipts comes before its messages are safe",
        "inorder.broker.producers.handlers",
        "            return None\n",
        "            return answer\n",
        f"{_IN_SENDS}test_where_messages_lie_is_told_when_they_are_safe",
    ),
    Mutant(
        "another-message-is-named", "A18", "a broker names the first message for any refusal",
        "inorder.broker.sends.rules",
        "of the batch: {error.remark}\", index=index)\n",
        "of the batch: {error.remark}\", index=0)\n",
        _IN_SENDS.removesuffix("::"),
    ),
    Mutant(
        "given-away-and-kept", "P1, A18",
        "a message that goes to another broker stays among the sent ones of its queue",
        _QUEUES,
        "        self.sent.remove(send)\n",
        "",
        f"{_IN_BATCHES}test_what_a_busy_broker_gives_to_another_one_is_stored_there_alone",
    ),
    Mutant(
        "submits-overtake", "P1", "a submit lets the loop run before it has its place",
        "inorder.client.send.producer",
        "                await self._leave_a_turn(topic, key)\n",
        "                await asyncio.sleep(0)\n",
        f"{_IN_BATCHES}test_submits_of_many_tasks_keep_the_order_of_the_calls",
    ),
    # Name servers that differ, maps that are made, names that are taken.
    Mutant(
        "no-map-is-asked-for", "A13", "a broker accepts keyed sends that no key map placed",
        "inorder.broker.producers.service",
        "DIGESTS_SINCE: Final = 2\n",
        "DIGESTS_SINCE: Final = 99\n",
        "tests/integration/test_placed_sends.py",
    ),
    Mutant(
        "one-name-server-is-asked", "A13", "routes and maps come from one name server",
        "inorder.client.nameservers",
        "        if len(self.addresses) == 1:\n",
        "        if self.addresses:\n",
        "tests/integration/test_differing_nameservers.py::"
        "test_a_key_stays_in_its_queue_when_the_first_name_server_knows_less",
    ),
    Mutant(
        "void-maps-count", "A13", "a key map that all its brokers deny stays in use",
        "inorder.client.rules.keymaps",
        "                void.add(encoded)\n",
        "                left.add(encoded)\n",
        "tests/unit/client/send/test_key_map_client.py::"
        "test_a_map_of_a_name_server_that_no_broker_holds_is_void",
    ),
    Mutant(
        "maps-open-before-all-hold-them", "A13", "a first key map opens before all brokers have it",
        "inorder.client.rules.keymaps",
        "    if missing:\n",
        "    if missing == 0:\n",
        "tests/property/test_making_model.py::test_there_is_one_map_whoever_makes_it",
    ),
    Mutant(
        "what-was-stored-is-not-read-first", "A13",
        "messages from before a first key map are not read first",
        _RESIZING,
        "    forgotten = not now.version and (empty or not plan.base)\n",
        "    forgotten = not now.version\n",
        "tests/integration/test_making_maps.py::"
        "test_a_topic_with_messages_gets_its_first_map_in_order",
    ),
    Mutant(
        "names-are-not-taken", "A13", "a second broker with the same name takes over the routes",
        "inorder.nameserver.rules",
        "        self._check_not_taken(new, broker.addresses.get(new.broker_id))\n",
        "",
        "tests/unit/nameserver/test_routes.py::test_the_name_of_a_connected_broker_is_taken",
    ),
    # The Spark sink.
    Mutant(
        "rows-share-a-number", "A12",
        "further rows of a message repeat the number of its first row",
        "inorder.spark.sink.sender",
        "                found = found + _sub_index(same, last & ((1 << self._shift) - 1))\n",
        "                pass\n",
        "tests/spark/test_packed_sink.py::test_a_task_that_is_repeated_sends_what_is_missing",
    ),
    Mutant(
        "late-row-has-its-offset", "A12",
        "the row of a message that waited is numbered below later rows",
        "inorder.spark.ordered.outputs",
        "pa.array(range(at, at + count), pa.int64())",
        "found.column(SOURCES[3])",
        "tests/unit/spark/ordered/test_row_numbers.py::"
        "test_a_row_of_a_message_that_waited_is_above_those_written_before",
    ),
    Mutant(
        "out-of-order-is-sent", "A12", "rows out of order are dropped silently",
        "inorder.spark.sink.sender",
        "        wrong = np.flatnonzero(found <= before)\n",
        "        wrong = np.flatnonzero(found < -1)\n",
        "tests/spark/test_packed_sink.py::test_numbers_of_the_users_own",
    ),
    Mutant(
        "one-name-for-all-versions", "A12", "all versions of a key map share one series of numbers",
        "inorder.spark.sink.rules",
        '    return name if version <= 1 else f"{name}@{version}"\n',
        "    return name\n",
        "tests/spark/test_packed_sink.py::test_a_batch_is_repeated_between_resizes",
    ),
    Mutant(
        "past-versions-are-not-asked", "A12", "rows stored before a resize are stored again",
        "inorder.spark.sink.rules",
        "        return version >= self.version\n",
        "        return False\n",
        "tests/spark/test_packed_sink.py::test_a_batch_is_repeated_between_resizes",
    ),
    Mutant(
        "requests-ahead-are-forgotten", "A12",
        "a retry repeats only the newest rows, not all open ones",
        "inorder.spark.sink.sender",
        "for rows in (*(sent.rows for sent in self._open), *more)}\n",
        "for rows in more}\n",
        "tests/spark/test_packed_sink.py::test_requests_behind_one_that_failed_are_refused",
    ),
    Mutant(
        "answers-are-not-awaited", "A12", "a task ends before its last rows are stored",
        "inorder.spark.sink.sender",
        "            self._await(0)\n        except",
        "            self._await(AHEAD_MAX)\n        except",
        "tests/spark/test_packed_sink.py::test_a_task_ends_when_its_last_rows_are_stored",
    ),
    Mutant(
        "rows-in-doubt-are-sent-again", "A12",
        "a task does not ask which rows of a lost request are stored",
        "inorder.spark.sink.sender",
        "                    rows.stored[chosen[numbers <= last]] = True\n",
        "                    pass\n",
        "tests/spark/test_task_sink.py::test_lost_answers_are_asked_for",
    ),
    Mutant(
        "old-numbers-stay-in-doubt", "A12",
        "rows that are sent again are looked for under the numbers of the first try as well",
        "inorder.spark.sink.sender",
        "            rows.unsure.clear()\n",
        "            pass\n",
        "tests/spark/test_task_sink.py::test_lost_answers_are_asked_for",
    ),
    Mutant(
        "rows-without-numbers-overtake", "A12",
        "a broker without numbers gets several requests for a queue at a time",
        "inorder.spark.sink.sender",
        "                self._await(0)\n                some",
        "                some",
        "tests/spark/test_task_sink.py::test_a_broker_without_numbers_gets_none",
    ),
    # Consuming without order, and members that want different things.
    Mutant(
        "late-commit-of-a-moved-queue", "P4",
        "a message that ends after its queue moved is committed",
        "inorder.client.consume.rules.outcomes",
        "return lease.dropped in (None, RevokeReason.STOPPED)",
        "return True",
        "tests/unit/client/consume/rules/test_concurrent_outcomes.py",
    ),
    Mutant(
        "close-throws-away", "P5", "messages that end while a consumer closes are thrown away",
        "inorder.client.consume.rules.outcomes",
        "return lease.dropped in (None, RevokeReason.STOPPED)",
        "return lease.dropped is None",
        f"{_IN_MOVES}test_a_close_commits_what_its_handlers_finish",
    ),
    Mutant(
        "stop-keeps-failed-messages", "P5",
        "a consumer that stops does not send back a failed message that waits for its next attempt",
        "inorder.client.consume.queue",
        "            if given_up is not None:\n",
        "            if False:\n",
        "tests/unit/client/consume/test_concurrent_runner.py::"
        "test_a_message_that_could_not_be_sent_back_is_sent_back_when_the_consumer_stops",
    ),
    Mutant(
        "stop-leaves-a-gap", "P5",
        "a stop without order leaves messages out that lie before one that is done",
        "inorder.client.consume.rules.outcomes",
        "    return lease.dropped is RevokeReason.STOPPED and not paused and not cancelled\n",
        "    return False\n",
        "tests/unit/client/consume/test_concurrent_runner.py::"
        "test_a_stop_hands_out_what_lies_before_a_begun_message_and_nothing_else",
    ),
    Mutant(
        "unlocked-commit-goes-back", "P4", "a commit without a lock lowers the group's offset",
        "inorder.broker.offsets.rules",
        "    if only_up:\n        return CommitKind.ONLY_UP\n",
        "    if only_up:\n        return CommitKind.ORDINARY\n",
        f"{_IN_MOVES}test_a_member_that_lost_its_queue_unawares_does_not_take_the_group_back",
    ),
    Mutant(
        "rocketmq-is-not-looked-at", "P4",
        "on RocketMQ a commit is sent without reading the offset first",
        "inorder.client.consume.commits",
        "        return stored > offset\n",
        "        return False\n",
        f"{_IN_MOVES}test_a_member_that_lost_its_queue_unawares_does_not_take_the_group_back",
    ),
    Mutant(
        "topics-not-subscribed-do-not-count", "P4", "only tags are compared, not topics",
        "inorder.broker.groups.rules",
        "            views.setdefault(wishes.get(topic), []).append(client_id)\n",
        "            if topic in wishes:\n"
        "                views.setdefault(wishes[topic], []).append(client_id)\n",
        "tests/unit/broker/groups/test_subscription_differences.py::"
        "test_topics_that_members_want_differently",
    ),
    Mutant(
        "doubt-is-ignored", "P2, P4", "owners continue after a failed sync of their files",
        "inorder.broker.durability",
        "        if self._broken:\n            raise",
        "        if not self:\n            raise",
        "tests/integration/test_broker_safety.py::"
        "test_a_failed_sync_of_an_own_file_stops_all_until_it_is_written_anew",
    ),
    Mutant(
        "no-descriptor-is-final", "P1", "a lack of descriptors counts as a failed sync",
        "inorder.store.faults",
        "    if error in NO_DESCRIPTORS:\n",
        "    if error is NO_DESCRIPTORS:\n",
        "tests/integration/test_broker_safety.py::test_no_descriptor_is_no_failed_sync",
    ),
    Mutant(
        "a-damaged-message-is-passed", "P3, P4", "the next pull begins after a damaged message",
        "inorder.client.consume.messages",
        "        return Received(found, found[-1].offset + 1)\n",
        "        return Received(found, next_offset)\n",
        "tests/unit/client/consume/test_received_messages.py::test_a_damaged_message_hides_none_before_it",
    ),
    Mutant(
        "a-damaged-message-hides-others", "P8", "a damaged message fails the whole pull",
        "inorder.client.consume.messages",
        "    if found:\n        return Received",
        "    if not error:\n        return Received",
        "tests/unit/client/consume/test_received_messages.py::test_a_damaged_message_hides_none_before_it",
    ),
    Mutant(
        "ready-before-all-are-listed", "P1, A13", "a first send sees only some brokers of `up`",
        "inorder.cli.supervising",
        "            if not missing:\n",
        "            if self._processes:\n",
        "tests/unit/cli/test_cli_brokers.py::"
        "test_nothing_is_ready_before_the_name_server_lists_all",
    ),
    Mutant(
        "derived-ports-are-too-near", "P1", "a RocketMQ client's second port is another broker's",
        "inorder.cli.brokers",
        "PORTS_APART: Final = 10\n",
        "PORTS_APART: Final = 2\n",
        "tests/unit/cli/test_cli_brokers.py::test_derived_values_are_apart",
    ),
    Mutant(
        "brokers-outlive-their-parent", "P6", "a broker goes on when `up` is gone",
        "inorder.cli.running",
        '            log.info("stdin is closed, stopping")\n            self._stopping.set()\n',
        '            log.info("stdin is closed, stopping")\n',
        "tests/unit/cli/test_cli_running.py::test_a_supervised_server_stops_with_its_lifeline",
    ),
    Mutant(
        "a-list-without-the-asker", "P6",
        "a client that comes back sees a list without itself and gives up its queues",
        "inorder.broker.groups.rules",
        "            and now_ms >= self.lost_until_ms\n",
        "",
        "tests/integration/test_member_list.py::"
        "test_a_tool_sees_the_members_but_a_client_never_misses_itself",
    ),
    # What operators ask for.
    Mutant(
        "unused-topics-lose-messages", "P1",
        "cleaning deletes the queues of a topic that the next start would take up again",
        "inorder.broker.cleaning.service",
        "        if any(queue.min_offset < queue.next_offset for queue in "
        "broker.store.queues_of(topic)):\n",
        "        if not topic:\n",
        "tests/unit/broker/cleaning/test_cleaning_handlers.py::"
        "test_queues_of_unknown_topics_go_unless_they_hold_messages",
    ),
    Mutant(
        "recovery-begins-before-the-log", "P1",
        "a broker does not start again after retention took what the key index lacks",
        "inorder.store.recovery",
        "        index_from = max(slot.index, self._log.min_position)\n",
        "        index_from = slot.index\n",
        "tests/integration/test_cleaning_on_request.py::"
        "test_a_kill_right_after_loses_no_end",
    ),
    # Request and reply.
    Mutant(
        "reply-is-not-waited-for", "P3", "a message is done before its reply is sent",
        "inorder.client.consume.workers",
        "                    await self._answer(batch, value)\n",
        "                    asyncio.get_running_loop().create_task(self._answer(batch, value))\n",
        f"{_IN_REQUESTS}test_a_reply_is_sent_before_its_message_is_done",
    ),
    Mutant(
        "last-reply-counts", "P1", "a second reply replaces the first one, or raises",
        "inorder.client.send.requests",
        "        if request is None or request.done():\n",
        "        if request is None:\n",
        "tests/unit/client/send/test_waiting_requests.py::test_a_caller_that_went_away_is_forgotten",
    ),
    Mutant(
        "oldest-connection-gets-the-reply", "P1", "a reply goes to a connection that is dead",
        "inorder.broker.groups.rules",
        "        newest = next(reversed(self._asking.get(client_id, {})), None)\n",
        "        newest = next(iter(self._asking.get(client_id, {})), None)\n",
        "tests/integration/test_broker_replies.py::"
        "test_the_newest_connection_of_a_client_gets_the_reply",
    ),
    Mutant(
        "requester-is-not-introduced", "P1", "a broker learns of a requester after its request",
        "inorder.client.session",
        "                connection.notify(Command.request(RequestCode.HEART_BEAT, {}, body, "
        "oneway=True))\n",
        "                pass\n",
        f"{_IN_REQUESTS}test_a_broker_knows_the_requester_before_it_stores_the_request",
    ),
    Mutant(
        "reply-to-any-topic", "P1", "a reply is a send without the checks of a send",
        "inorder.broker.replies.rules",
        "    if request.topic != topic:\n",
        "    if not request.topic:\n",
        "tests/unit/broker/replies/test_reply_rules.py::"
        "test_only_plain_messages_to_the_reply_topic_are_replies",
    ),
    # Access control, limits and audit together.
    Mutant(
        "guesses-are-not-slowed", "access", "a guesser of secrets is as fast as the network",
        "inorder.broker.router",
        "        if refused.reason in FAILED_LOGINS:\n",
        "        if not refused.reason:\n",
        f"{_IN_TOGETHER}test_failed_logins_are_answered_late_and_correct_ones_at_once",
    ),
    Mutant(
        "a-certificate-signs-everything", "access", "a wrong signature over mutual TLS is not seen",
        _ACCESS_SERVICE,
        "        if name is None and given is None:\n",
        "        if self._certified(connection):\n",
        f"{_IN_TOGETHER}test_a_certificate_names_a_user_and_his_rights",
    ),
    Mutant(
        "one-too-many-is-served", "limits", "the request of a connection too many is served",
        "inorder.net.accepted",
        "            return not self.closed\n        return True\n",
        "            return True\n        return True\n",
        f"{_IN_TOGETHER}test_a_user_has_his_own_limits_of_connections_and_requests",
    ),
    Mutant(
        "a-refusal-is-told-twice", "audit", "a refused change has a second line",
        "inorder.broker.router",
        "        else:\n            self._reply(connection, command, reply)\n",
        "        else:\n            self.answer(connection, command, reply)\n",
        f"{_IN_TOGETHER}test_audit_lines_of_refusals_and_changes",
    ),
    Mutant(
        "bodies-of-nobody-are-kept", "access", "16 MB of a stranger are received and then refused",
        _ACCESS_SERVICE,
        "        if not self._enforces:\n            return True\n",
        "        if self.level:\n            return True\n",
        f"{_IN_TOGETHER}test_a_long_request_of_a_stranger_is_not_received",
    ),
    # Certificates, limits, audit.
    Mutant(
        "any-certificate-will-do", "TLS", "a certificate that is asked for is not checked",
        "inorder.net.tls",
        "    context.verify_mode = _CLIENT_AUTH[config.tls_client_auth]\n",
        "    context.verify_mode = ssl.CERT_NONE\n",
        f"{_IN_TLS}test_required_certificates_and_the_users_that_they_name",
    ),
    Mutant(
        "plain-text-is-served", "TLS", "a plain request is executed where TLS is enforced",
        "inorder.net.accepted",
        '            if mode == "enforcing":\n',
        '            if mode == "enforced":\n',
        f"{_IN_TLS}test_enforcing_executes_no_plain_request",
    ),
    Mutant(
        "half-a-pair-is-in-force", "TLS", "files that do not fit together end the old context",
        "inorder.net.tls",
        "            self._unusable = stamps\n            return\n",
        "            self._unusable, self._context = stamps, None\n            return\n",
        "tests/unit/net/test_tls.py::test_files_that_do_not_fit_are_not_used",
    ),
    Mutant(
        "two-names-are-one", "TLS", "a certificate that names two users names one of them",
        "inorder.net.tls",
        "    if len(names) != 1:\n        return None\n    (name,) = names\n",
        "    if not names:\n        return None\n    name = min(names)\n",
        "tests/unit/net/test_tls.py::test_whom_a_certificate_names",
    ),
    Mutant(
        "heartbeats-wait", "limits", "a heartbeat waits for the limit of its address",
        "inorder.net.accepted",
        "    return command.is_response or command.code in NEVER_DELAYED\n",
        "    return command.is_response\n",
        "tests/unit/net/test_accepted.py::"
        "test_what_is_over_a_limit_waits_and_heartbeats_do_not",
    ),
    Mutant(
        "coming-back-is-free", "limits", "a new connection does not pay the debt of the former",
        "inorder.net.rules",
        "        if meter.is_idle(now_ms):\n            del self._meters[key]\n\n"
        "    def forget_idle",
        "        if not meter.connections:\n            del self._meters[key]\n\n"
        "    def forget_idle",
        "tests/unit/net/test_net_rules.py::test_coming_back_does_not_pay_a_debt",
    ),
    Mutant(
        "failures-are-answered-at-once", "limits", "a guesser is as fast as the network",
        "inorder.net.rules",
        "    if over <= 0:\n        return 0\n",
        "    return 0\n",
        "tests/unit/net/test_net_rules.py::test_failed_logins_grow_slow_and_are_closed",
    ),
    Mutant(
        "audit-keeps-half-a-line", "audit", "a full disk leaves half a line in the audit log",
        "inorder.audit.storage",
        "                file.truncate(self._end)\n",
        "                pass\n",
        "tests/unit/audit/test_audit_storage.py::test_a_write_that_fails_leaves_no_half_line",
    ),
    Mutant(
        "audit-shows-values", "audit", "values of settings are in the audit log",
        "inorder.audit.rules",
        "f\"Setting:{one.partition('=')[0].strip()}\"",
        "f\"Setting:{one.strip()}\"",
        "tests/unit/audit/test_audit_rules.py::test_what_a_change_touches",
    ),
    Mutant(
        "open-without-a-word", "TLS", "other machines are let in by accident",
        "inorder.cli.serve",
        "        if not insecure:\n            raise ConfigError(\n                f\"host={host}",
        "        if not host:\n            raise ConfigError(\n                f\"host={host}",
        "tests/unit/cli/test_cli_serve.py::test_open_addresses_need_a_word",
    ),
]  # fmt: skip

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
