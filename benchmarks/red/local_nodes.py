"""The defences of the local cloud: of the machine that it runs on, and of its API."""

from __future__ import annotations

from benchmarks.red.defence import defence

# Where root runs the local cloud, nodes with ids of their own reach little of it even where another defence is missing.
_IDS = ("localcloud/nodes/userns.py", "return _NODES_ROOT if shifted else 0", "return 0")
_CROWDING = "test_crowding_the_local_cloud.py::test_a_job_takes_little_of_the_local_cloud_and_nobody_else_s_place"

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
            "localcloud/api/app.py",
            "guarded = iam.wrap(context, _services(context, engine))",
            "guarded = _services(context, engine)",
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
            "    with suppress(OSError):\n        place = _Place(os.open(top, _DIRECTORY), unlocks=True)",
            "    import shutil\n\n    shutil.rmtree(top, ignore_errors=True)\n"
            "    with suppress(OSError):\n        place = _Place(os.open(top, _DIRECTORY), unlocks=True)",
        ),
    ),
)
