"""The defences of the local cloud: of the machine that it runs on, and of its API."""

from __future__ import annotations

from benchmarks.red.defence import defence

# Where root runs the local cloud, nodes with ids of their own reach little of it even where another defence is missing.
_IDS = ("localcloud/nodes/userns.py", "return _NODES_ROOT if shifted else 0", "return 0")
_CROWDING = "test_crowding_the_local_cloud.py::test_a_job_takes_little_of_the_local_cloud_and_nobody_else_s_place"

_FILLING = "test_filling_the_local_cloud.py::test_"
_QUOTAS = ("localcloud/api/quotas.py", "if peer == USER or (", "if True or (")
_STATUS = "localcloud/nodes/supervisor.py"
_STOPS = (
    _STATUS,
    "node.status_fd is not None:\n            self._stop_listening(node)\n            self._node_is_up",
    "node.status_fd is not None:\n            self._node_is_up",
)
_OF_HANDLES = (
    ("localcloud/messaging/queues.py", "if len(self.deleted_messages) > _MOST_DELETED:", "if False:"),
    ("localcloud/messaging/queues.py", "del self._old_receipt_handles[:-_MOST_HANDLES]", "pass"),
)

_NO_RELIEF = ("node/logins.py", "if len(pipes) < _FROM_ONE * _CROWDED:", "if True:")

DEFENCES = (
    defence(
        "root on a local node has another number than the kernel's root",
        "test_escape_from_a_node.py::test_root_on_a_node_can_t_change_the_kernel",
        _IDS,
    ),
    defence(
        "mounts of a local node are locked",
        "test_escape_from_a_node.py::test_root_on_a_node_can_t_make_the_hosts_files_writable",
        _IDS,
        ("localcloud/nodes/isolation.py", '_OWN if site.mode == "root" else _OWN | kernel.CLONE_NEWUSER', "_OWN"),
        (
            "localcloud/nodes/isolation.py",
            'if site.mode != "root":\n                userns',
            "if False:\n                userns",
        ),
    ),
    defence(
        "a node that starts again is built without following links",
        "test_escape_from_a_node.py::test_a_node_that_starts_again_leads_nobody_out_of_its_disk",
        ("localcloud/nodes/rootfs.py", "if here.is_symlink():\n            raise", "if False:\n            raise"),
        (
            "localcloud/nodes/rootfs.py",
            "if path.is_symlink():\n        path.unlink()",
            "if False:\n        path.unlink()",
        ),
        ("localcloud/nodes/rootfs.py", "if not (root / name).is_symlink():", "if True:"),
    ),
    defence(
        "a node has the mounted buckets of its own VPC alone",
        "test_escape_from_a_node.py::test_root_on_a_node_sees_no_mounted_bucket_of_another_vpc",
        ("localcloud/nodes/rootfs.py", "(mounted := site.buckets / machine.vpc_id)", "(mounted := site.buckets)"),
    ),
    defence(
        "a node takes no advertisements of routers",
        "test_escape_from_a_node.py::test_root_on_a_node_can_t_be_its_neighbours_router",
        ("localcloud/nodes/vpc.py", 'accept_ra").write_text("0")', 'accept_ra").write_text("1")'),
    ),
    defence(
        "a node sends only from its own addresses",
        "test_escape_from_a_node.py::test_root_on_a_node_can_t_be_its_neighbour",
        ("localcloud/nodes/vpc.py", "bridge.drop_other_senders(link, address, mac_of(address))", "pass"),
    ),
    defence(
        "volumes of nodes have sizes",
        "test_filling_this_machine.py::test_the_files_of_all_nodes_together_leave_this_machine_half_of_its_memory",
        (
            "localcloud/nodes/volumes.py",
            'return f"size={size_bytes},nr_inodes={size_bytes // _BYTES_PER_INODE}"',
            'return "size=50%"',
        ),
    ),
    defence(
        "functions run in a sandbox",
        "test_hostile_functions.py::test_a_function_reads_no_file_of_this_machine",
        (
            "localcloud/messaging/environment.py",
            '"-I", str(SANDBOX), sources, json.dumps(asdict(settings))]',
            '"-I", "-u", str(RUNTIME), str(code), str(function.handler), str(writer)]',
        ),
    ),
    defence(
        "functions make no user namespaces",
        "test_hostile_functions.py::test_a_function_has_no_rights_and_gets_none",
        (
            "localcloud/messaging/sandbox.py",
            'Path("/proc/sys/user/max_user_namespaces").write_text("0")',
            "pass",
        ),
    ),
    defence(
        "functions write only to their own memory",
        "test_hostile_functions.py::test_a_function_writes_only_to_its_own_memory",
        ("localcloud/messaging/sandbox.py", "    kernel.make_read_only(root)\n    kernel.mount", "    kernel.mount"),
    ),
    defence(
        "a function's user owns nothing of this machine",
        "test_hostile_functions.py::test_a_functions_user_is_nobody_here",
        ("localcloud/messaging/sandbox.py", "kernel.change_owner(settings.first_id + USER)", "pass"),
    ),
    defence(
        "the logs of functions have a size",
        "test_hostile_functions.py::test_the_logs_of_functions_have_a_size",
        ("localcloud/messaging/functions.py", "while total > MOST_LOGGED_BYTES:", "while False:"),
    ),
    defence(
        "a function has the memory that it was given",
        "test_hostile_functions.py::test_a_process_has_the_memory_that_the_function_was_given",
        ("localcloud/messaging/sandbox.py", "resource.RLIMIT_DATA: settings.memory_mib * _MIB,", ""),
    ),
    defence(
        "what functions print has a limit",
        "test_hostile_functions.py::test_what_a_function_prints_is_bounded",
        ("localcloud/messaging/sandbox.py", "resource.RLIMIT_FSIZE: FILE_MIB * _MIB,", ""),
    ),
    defence(
        "accounts of nodes have a limit of processes",
        "test_filling_this_machine.py::test_a_job_ends_at_a_limit_of_processes_and_harms_no_other_node",
        ("localcloud/nodes/limits.py", "resource.setrlimit(resource.RLIMIT_NPROC, (most, most))", "pass"),
    ),
    defence(
        "jobs make no user namespaces",
        "test_filling_this_machine.py::test_a_job_can_t_get_memory_by_other_doors",
        ("localcloud/nodes/limits.py", '_set("user/max_user_namespaces", 0)', "pass"),
    ),
    defence(
        "shared memory of System V has a limit",
        "test_filling_this_machine.py::test_a_job_can_t_get_memory_by_other_doors",
        (
            "localcloud/nodes/limits.py",
            '_set("kernel/shmall", machine.memory_mib * _MIB // 2 // os.sysconf("SC_PAGE_SIZE"))',
            "pass",
        ),
    ),
    defence(
        "a node's connections to the local cloud have a limit",
        f"{_CROWDING} -k headers",
        ("localcloud/api/admission.py", "if before + count > self.most(peer):", "if False:"),
    ),
    defence(
        "requests to the local cloud have a deadline",
        f"{_CROWDING} -k headers",
        ("localcloud/api/admission.py", "settimeout(max(0.001, self._end - time.monotonic()))", "settimeout(75)"),
    ),
    defence(
        "large bodies of a node's requests wait for each other",
        f"{_CROWDING} -k bodies",
        ("localcloud/api/http.py", "elif not memory.take(peer, held, _ROOM_WITHIN_S):", "elif False:"),
    ),
    defence(
        "a node's documents count with what they take once they are parsed",
        f"{_CROWDING} -k documents",
        ("localcloud/api/http.py", "(1 if self._is_content() else _PARSED)", "1"),
    ),
    defence(
        "every request of the local cloud has a signature",
        "test_web_page.py::test_a_page_gets_no_answer_and_changes_nothing",
        (
            "localcloud/iam/middleware.py",
            "issued = context.issued.get(call.access_key_id)",
            "issued = context.issued.get(call.access_key_id) or next(iter(context.issued.values()))",
        ),
        (
            "localcloud/iam/middleware.py",
            'if issued is None or environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "") != issued.session_token:',
            "if False:",
        ),
        (
            "localcloud/iam/middleware.py",
            "if not _is_signed_with(environ, call.body, issued.secret_access_key):",
            "if False:",
        ),
    ),
    defence(
        "the local cloud's control needs its key",
        "test_web_page.py::test_a_page_gets_no_answer_and_changes_nothing",
        (
            "localcloud/daemon/control.py",
            'if not hmac.compare_digest(environ.get("HTTP_X_LOCALCLOUD_KEY", "").encode(), self.secret.encode()):',
            "if False:",
        ),
    ),
    defence(
        "the keys of a cluster are readable only by this user",
        "test_web_page.py::test_what_others_may_look_at_holds_no_key",
        ("state_files.py", "path.mkdir(mode=0o700, exist_ok=True)", "path.mkdir(exist_ok=True)"),
        ("cluster/keys.py", "    private.parent.chmod(0o700)\n", ""),
        ("state_files.py", "files.write(str(path), text, 0o600,", "files.write(str(path), text, 0o644,"),
    ),
    *(
        defence(f"{kept} of nodes have a limit", f"{_FILLING}{test}", _QUOTAS)
        for kept, test in (
            ("logs", "logs_of_a_node_push_out_its_own_oldest_ones"),
            ("messages", "a_node_that_fills_a_queue_is_throttled_alone_and_only_while_it_is_full"),
            ("metrics", "metrics_of_a_node_push_out_its_own_oldest_ones"),
            ("items", "a_node_that_fills_a_table_is_throttled_alone"),
            ("objects", "objects_of_nodes_take_an_eighth_of_this_machine_s_memory"),
            ("other changes", "all_other_changes_of_a_node_have_a_rate"),
        )
    ),
    *(
        defence(name, f"{_FILLING}{test}", *edits)
        for name, test, *edits in (
            (
                "delayed messages cost nothing until their time",
                "nobody_looks_at_all_delayed_messages_for_each_one_that_comes",
                (
                    "localcloud/messaging/queues.py",
                    "if self.quiet_since == changes and now_ms <",
                    "if False and now_ms <",
                ),
                ("localcloud/messaging/queues.py", "if len(self._messages) <= _EXACT:", "if True:"),
            ),
            ("handles of messages are forgotten", "handles_of_messages_are_not_kept_for_ever", *_OF_HANDLES),
            (
                "a batch of logs has a size",
                "a_batch_of_logs_has_at_most_a_mebibyte",
                ("localcloud/api/refusals/services.py", "if size > _BATCH_MOST_BYTES:", "if False:"),
            ),
            (
                "a value that counts often is one statistic",
                "a_value_that_counts_a_million_times_is_kept_once",
                (
                    "localcloud/api/refusals/services.py",
                    "if len(values) == len(counts) and sum(counts) > _COUNTS_SINGLY:",
                    "if False:",
                ),
            ),
            (
                "updates of items have a size",
                "an_update_makes_no_item_larger_than_an_item_may_be",
                (
                    "localcloud/storage/tables.py",
                    'if item_bytes(item.to_json()["Attributes"]) > ITEM_MOST_BYTES:',
                    "if False:",
                ),
            ),
            (
                "partitions are forgotten",
                "partitions_that_nobody_reads_are_forgotten",
                ("localcloud/storage/tables.py", "if len(self._buckets) > _MOST_PARTITIONS:", "if False:"),
            ),
            (
                "sessions of a node have a limit",
                "a_node_has_as_many_sessions_of_roles_as_anyone_needs",
                ("localcloud/iam/credentials.py", "if sum(map(len, mine.values())) > _MOST_ASSUMED:", "if False:"),
            ),
            (
                "tokens of an instance have a limit",
                "an_instance_has_as_many_tokens_for_its_metadata_as_anyone_needs",
                ("localcloud/ec2/imds.py", "if len(mine) > _MOST_TOKENS:", "if False:"),
            ),
            (
                "the record of used rights has a limit",
                "what_a_role_uses_is_noted_so_many_times",
                ("localcloud/iam/usage.py", " or _of_role[role] >= _MOST_OF_A_ROLE:", ":"),
            ),
            (
                "messages of a topic are forgotten",
                "messages_of_a_topic_are_forgotten_once_they_are_sent",
                ("localcloud/messaging/notifications.py", "self.sent_notifications.clear()", "pass"),
            ),
            (
                "the local cloud's log has an end",
                "the_local_cloud_s_log_has_an_end",
                ("localcloud/daemon/lifecycle.py", "os.fstat(2).st_size < _LOG_BYTES", "True"),
            ),
            (
                "signals have a limit",
                "a_wait_handle_keeps_so_many_signals",
                ("localcloud/cloudformation/worker.py", "if is_new and len(received) >= MOST_SIGNALS:", "if False:"),
            ),
        )
    ),
    defence(
        "other users of this machine have a share of their own",
        "test_web_page.py::test_another_user_s_unfinished_requests_shut_nobody_out",
        ("localcloud/api/http.py", "OTHERS if accounts and not accounts.is_ours(client, own) else USER", "USER"),
    ),
    defence(
        "unfinished logins are counted for each address",
        "test_silent_logins.py::test_a_job_that_says_nothing_to_sshd_keeps_no_other_node_out",
        ("node/contract.py", 'logins.share(nodes)}\\n" if machine.openssh >= (8, 5) else ""', '1000}\\n"'),
        _NO_RELIEF,
        (
            "localcloud/nodes/image.py",
            'return "PerSourceMaxStartups 100\\n" if known and (int(known[1]), int(known[2])) >= (8, 5) else ""',
            'return ""',
        ),
    ),
    *(
        defence(name, f"test_silent_logins.py::{test}", _NO_RELIEF)
        for name, test in (
            (
                "unfinished logins from the loopback device are ended",
                "test_a_job_on_the_head_keeps_its_user_in_by_all_addresses_of_the_loopback_device",
            ),
            (
                "unfinished logins at an older sshd are ended",
                "test_a_job_keeps_nobody_out_of_an_older_sshd_that_does_not_count_by_address",
            ),
        )
    ),
    defence(
        "a node writes only its own exports",
        "test_escape_from_a_node.py::test_root_on_a_node_writes_only_its_own_exports",
        ("localcloud/nodes/exports.py", "shelf / _LISTS, read_only=True)", "shelf / _LISTS)"),
    ),
    defence(
        "no node can list what another one will export",
        "test_escape_from_a_node.py::test_root_on_a_node_writes_only_its_own_exports",
        (
            "localcloud/nodes/exports.py",
            "os.chown(trees, *[userns.no_nodes_id(site.root)] * 2)",
            "os.chown(trees, *[site.root] * 2)",
        ),
    ),
    defence(
        "nothing is read of a node that is up",
        "test_what_nodes_report.py::test_a_node_that_is_up_reports_no_more",
        _STOPS,
        (_STATUS, "elif len(node.output) >= _MOST_STATUS_BYTES:", "elif False:"),
    ),
    defence(
        "nobody waits for the end of what a node reports",
        "test_what_nodes_report.py::test_nobody_waits_for_the_end_of_what_another_nodes_process_still_writes",
        _STOPS,
        (_STATUS, "os.set_blocking(status_r, False)", "pass"),
        (
            _STATUS,
            "with suppress(BlockingIOError):\n            self._reported(node)",
            "while self._reported(node):\n            pass",
        ),
        ("localcloud/nodes/console.py", "for _ in range(_LAST_READS):", "while True:"),
    ),
    defence(
        "a console may be empty when it is read",
        "test_what_nodes_report.py::test_a_node_that_reads_its_own_console_takes_nothing_from_others",
        (
            _STATUS,
            "with suppress(BlockingIOError):\n                        self._handlers",
            "if True:\n                        self._handlers",
        ),
    ),
    defence(
        "user data that is small can not become large",
        "localcloud/tests/unit/test_reading_user_data.py::test_a_small_file_takes_little_memory -k path",
        ("localcloud/nodes/user_data.py", "room -= 1", "break  # room -= 1"),
    ),
    defence(
        "parts of user data count together",
        "localcloud/tests/unit/test_reading_user_data.py::test_a_small_file_takes_little_memory -k parts",
        ("localcloud/nodes/user_data.py", "if self._room < 0:", "if False:"),
    ),
    defence(
        "the nodes can be dialled only by this user",
        "test_web_page.py::test_another_user_reads_and_connects_to_nothing",
        ("localcloud/network/dialer.py", "path.chmod(0o600)", "path.chmod(0o666)"),
        (
            "localcloud/daemon/lifecycle.py",
            "options.state.mkdir(parents=True, exist_ok=True, mode=0o700)\n    _check_private(options.state)",
            "options.state.mkdir(parents=True, exist_ok=True)",
        ),
        (
            "local/endpoint.py",
            "state().mkdir(parents=True, exist_ok=True, mode=0o700)",
            "state().mkdir(parents=True, exist_ok=True)",
        ),
    ),
    defence(
        "what the local cloud deletes may be nested deeper than calls",
        "test_damaged_records.py::test_the_local_cloud_ends_and_starts_after_a_job_has_nested_directories",
        (
            "localcloud/storage/trees.py",
            "    with suppress(OSError):\n        place = _Place(_opened(top), unlocks=True)",
            "    import shutil\n\n    shutil.rmtree(top, ignore_errors=True)\n"
            "    with suppress(OSError):\n        place = _Place(_opened(top), unlocks=True)",
        ),
    ),
)
