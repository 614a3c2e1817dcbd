"""The defences of a cluster and of the user's machine (docs/security.md)."""

from __future__ import annotations

from benchmarks.red.defence import defence

_BELIEVED = 'if sender_id != f"{self.agent.settings.worker_role}:{sender}":'
_ANY_SENDER = ("node/head.py", _BELIEVED, "if False:")
_ANY_TEXT = (
    "node/validate.py",
    "pattern.fullmatch(value) if isinstance(value, str)",
    "re.match('(?s)(.*)', value) if isinstance(value, str)",
)
_ANY_HOST_NAME = ("node/validate.py", 'if found.hostname.split(".")[0] not in own:', "if False:")
_UNLISTED = (
    (
        "node/head.py",
        "asked = [i for i in self._newcomers if i in listed][:_ASKED_AT_ONCE]",
        "asked = list(self._newcomers)",
    ),
    (
        "node/head.py",
        "found = self.agent.fleet.addresses(asked) if asked else {}",
        "found = {i: self._newcomers[i].address for i in asked}",
    ),
    (
        "node/decision.py",
        "group is not None and instance_id not in group.instances and state.heard",
        "False and state.heard",
    ),
)
_SHUT = ("node/firewall.py", 'run(["sh", _SCRIPT], 30)', "pass")
_SEEMS_SHUT = (
    "node/firewall.py",
    "return any(_leads(uid, *to, device) for to in _METADATA for device in devices)",
    "return False",
)
_HOME = ("node/account.py", "os.chmod(directory, 0o1775)", "os.chmod(directory, 0o775)")

_FEW_CLIENTS = ("node/credentials.py", "_CLIENTS, _SENDING = 256, 64", "_CLIENTS, _SENDING = 64, 64")

DEFENCES = (
    defence(
        "a batch scheduler's words are cut",
        "tests/parts/test_via_slurm.py -k without",
        ("runner/batch/commands.py", "' '.join(reason(said).split())", "' '.join(said.split())"),
    ),
    defence(
        "cells of tables are cut",
        "test_hostile_output.py::test_texts_of_megabytes_that_a_job_chose_are_cut",
        ("cli/console.py", "text if len(text) <= _LONGEST_CELL", "text if True"),
        ("runner/files/schema.py", "return text(value)[:_LONGEST_WORDS]", "return text(value)"),
    ),
    defence(
        "a batch scheduler's answer has an end",
        "tests/parts/test_via_slurm.py -k no-end",
        ("runner/batch/commands.py", "> MOST_BYTES:", "> 1 << 62:"),
    ),
    defence(
        "a batch scheduler's letters are any",
        "tests/parts/test_via_slurm.py -k encoding",
        ("runner/batch/commands.py", 'decode(errors="replace")', "decode()"),
    ),
    defence(
        "a batch scheduler answers with an id",
        "tests/parts/test_via_slurm.py -k nothing",
        ("runner/files/schema.py", 'compile("[A-Za-z0-9][!-~]{0,511}")', 'compile("(?s).*")'),
    ),
    defence(
        "silent clients of the exporter make room",
        "tests/parts/test_exporter.py -k say_nothing",
        ("cli/exporter.py", "> _MOST_SILENT:", "> 9999:"),
    ),
    defence(
        "a head names no beginning of a file that is not sent",
        "tests/parts/test_transfer.py -k beginning",
        ("runner/files/begun.py", " and int(number) < items", ""),
    ),
    defence(
        "a node's line has an end as the network is measured",
        "tests/parts/test_hostile_measurement.py -k no-end",
        ("netcheck/__main__.py", "> _LONGEST_LINE:", "> 1 << 62:"),
    ),
    defence(
        "a node measures under its own rank",
        "tests/parts/test_hostile_measurement.py -k another",
        ("netcheck/__main__.py", "if rank not in taken", "if True"),
    ),
    defence(
        "no directory of a system is shared",
        "tests/unit/test_spec.py -k shared",
        ("spec/spec_checks.py", 'if not re.fullmatch(f"{SHARED}/*", value):', "if False:"),
    ),
    defence(
        "messages of jobs and nodes make no lines of their own",
        "test_hostile_output.py::test_a_reason_in_the_table_is_shown",
        ("cli/terminal.py", 'return text.replace("\\n", "\\n  ")', "return text"),
    ),
    defence(
        "a list of mistakes has an end",
        "tests/unit/test_json_errors.py::test_a_file_with_mistakes_without_end_gets_an_answer_with_one",
        ("counts.py", "between.join(found[:most])", "between.join(found)"),
        ("errors.py", "if len(message) > _LONGEST:", "if False:"),
    ),
    defence(
        "names in a repository make no lines",
        "test_hostile_output.py::test_names_in_a_repository_make_no_lines",
        ("cli/starting.py", "{one_line(progress.warning)}", "{progress.warning}"),
    ),
    defence(
        "what an ended job locked is removed",
        "tests/parts/test_deep_trees.py::test_a_directory_that_its_owner_can_not_use_is_removed",
        ("objects/trees.py", "except PermissionError:", "except IndexError:"),
    ),
    defence(
        "names of shared memory are no lines or words",
        "tests/parts/test_scratch.py::test_a_job_s_files_stop_no_look_at_what_is_in_use_whatever_their_names",
        (
            "runner/starter/scratch.py",
            'text.split(b"\\n")]',
            'text.replace(b"\\x0b", b"\\n").split(b"\\n") if _MAPPED in line]',
        ),
        ("runner/starter/scratch.py", "len(line) > 5 and ", ""),
    ),
    defence(
        "a file of variables leads to no other file",
        "test_hostile_repository.py::test_a_file_of_variables_is_the_repository_s_own",
        ("guest_file.py", "if top is not None and top != above[-1]:", "if False:"),
    ),
    defence(
        "a file of variables is no pipe",
        "test_hostile_repository.py::test_a_file_of_variables_that_is_a_pipe_is_refused",
        ("guest_file.py", "if top is not None and top != above[-1]:", "if False:"),
    ),
    defence(
        "names of mounts are no lines or words",
        "tests/parts/test_silent_directories.py::test_others_mounts_stop_nothing_whatever_their_names",
        ("guest_file.py", 'line.split(b" ") for line in lines', "line.split() for line in lines.read().splitlines()"),
    ),
    defence(
        "advice quotes names of files",
        "tests/unit/test_check.py",
        ("runner/starter/check.py", 'shlex.quote(f"./{name}" if name.startswith("-") else name)', "name"),
    ),
    defence(
        "what a tag says is a cluster's name",
        "tests/parts/test_orphans.py::test_a_tag_that_names_no_cluster_is_nobody_s_and_troubles_nobody",
        ("aws/tags.py", "bool(_NAME.fullmatch(text))", "True"),
    ),
    defence(
        "patterns of ignore files take so much time",
        "tests/unit/test_code_tree.py",
        ("code/code_tree.py", "time.thread_time() - self._begun_s > _LONGEST_CPU_S", "False"),
    ),
    defence(
        "a process that is none of the job is not ended with it",
        "test_hostile_stacks.py::test_a_process_that_is_none_of_the_job_is_not_ended_with_it",
        ("runner/system.py", "return line[-1] == root != pid", "return True"),
    ),
    defence(
        "only descendants of a job's starter are read for its stacks",
        "test_hostile_stacks.py::test_a_process_that_is_none_of_the_job_is_not_read",
        ("runner/starter/look.py", "if pid in ours and pid in table}", "if pid in table}"),
    ),
    defence(
        "what reads stacks runs only if its hash is right",
        "test_hostile_stacks.py::test_a_program_in_the_place_of_py_spy_does_not_run_and_is_replaced",
        (
            "runner/tracer.py",
            "return content if sha256(content).hexdigest() == DIGESTS.get(os.uname().machine) else None",
            "return content",
        ),
    ),
    defence(
        "the policy of whoever runs phalanx keeps the boundary of roles",
        "test_boundary.py::test_no_call_to_iam_undoes_the_boundary",
        ("template/policy.py", '{"ArnEquals": {"iam:PermissionsBoundary": boundary}} if boundary else {}', "{}"),
    ),
    defence(
        "the local cloud imports nothing from the shell's PYTHONPATH",
        "test_hostile_repository.py::test_a_python_path_of_the_repository_does_not_lead_the_local_cloud_to_its_modules",
        ("local/isolated.py", 'sys.executable, "-I", __file__', "sys.executable, __file__"),
    ),
    defence(
        "browsers get pages of jobs under the cluster's own name alone",
        "test_web_page.py::test_a_page_of_a_job_gets_and_sets_no_cookie_of_other_services_of_this_machine",
        ("jobs/relay.py", "if not request or not _BROWSER.search(headers) or", "if True or"),
    ),
    defence(
        "requests for credentials that do not end make room for others",
        "test_metadata.py::test_requests_that_do_not_end_keep_no_job_from_its_credentials",
        _FEW_CLIENTS,
        ("node/credentials.py", "for oldest in list(self._sending)[: 1 - _SENDING]:", "for oldest in ():"),
        ("node/credentials.py", "client.settimeout(max(0, end - time.monotonic()))", "pass"),
    ),
    defence(
        "one process can't take all places of starters at the agent",
        "test_metadata.py::test_jobs_that_do_not_exist_keep_no_job_from_its_credentials",
        _FEW_CLIENTS,
        ("node/credentials.py", "if self._processes.count(process) > _OF_A_PROCESS:", "if False:"),
    ),
    defence(
        "jobs can't change the key with which nodes log in to each other",
        "test_hindered_proof.py::test_a_job_can_t_spoil_the_key_with_which_nodes_log_in_to_each_other",
        ("node/account.py", "files.chown(path, _NO_ACCOUNT if uid else 0,", "files.chown(path, uid,"),
    ),
    defence(
        "the head's logins that prove its nodes are root's",
        "test_hindered_proof.py::test_no_job_ends_the_head_s_logins_nor_writes_to_their_output",
        (
            "node/proof.py",
            '_SSH = ["ssh",',
            '_SSH = ["setpriv", "--reuid=2000", "--regid=2000", "--clear-groups", "ssh",',
        ),
    ),
    defence(
        "the head's agent needs no room on its disk",
        "test_hindered_proof.py::test_a_job_that_fills_the_head_s_disk_stops_neither_its_agent_nor_its_user",
        ("node/head.py", 'settings.networks, f"{agent.root}/run/phalanx"', "settings.networks"),
    ),
    defence(
        "jobs can't change the agent that EMR's nodes run as root",
        "test_emr_node.py::test_a_job_on_a_node_of_emr_gets_nothing_of_emr_s_nor_the_agent_of_other_nodes",
        ("template/emr/builder.py", ", never=[_keep_agents(plan)]", ""),
    ),
    defence(
        "what shells and ssh read at home is root's, in sticky directories",
        "test_later_jobs.py::test_nothing_that_a_job_planted_acts_in_the_next_login",
        _HOME,
    ),
    defence(
        "the head hears beats on a port of root's",
        "test_forged_messages.py::test_a_job_takes_no_port_on_which_the_head_hears_beats",
        ("node/beats.py", "PORT = 273", "PORT = 7312"),
    ),
    defence(
        "jobs leave nothing to cron and at",
        "test_later_jobs.py::test_a_job_leaves_nothing_to_cron_and_at",
        ("node/contract.py", "account.deny_timers(machine.job_user, root)", "pass"),
    ),
    defence(
        "sshd reads no keys of the job user's home",
        "test_later_jobs.py::test_a_key_in_the_home_directory_opens_nothing",
        _HOME,
        (
            "node/contract.py",
            "Match User {machine.job_user}\n    AuthorizedKeysFile ",
            "Match User {machine.job_user}\n    AuthorizedKeysFile .ssh/authorized_keys ",
        ),
        ("node/contract.py", "PermitUserRC no", "StrictModes no"),
    ),
    defence(
        "what makes an environment has no home",
        "test_later_jobs.py::test_nothing_that_a_job_planted_decides_what_a_later_ones_environment_is_made_of",
        ("runner/environments/environment.py", "quiet.update(HOME=os.path.join(self._path, _FILES))", "pass"),
    ),
    defence(
        "an agent and a display are not forwarded",
        "test_hostile_head.py::test_plain_ssh_lends_the_head_neither_an_agent_nor_a_display",
        ("cluster/ssh_config.py", '"    ForwardAgent no",', ""),
    ),
    defence(
        "a user certificate is good from inside the VPC only",
        "test_later_jobs.py::test_a_copied_key_and_certificate_open_nothing_from_outside",
        ("node/trust.py", '"-O", f"source-address={self._networks}"', ""),
    ),
    defence(
        "the runner on the shared directory is run by its SHA-256 only",
        "test_planted_runner.py",
        ("runner/checked.py", ".hexdigest() == digest", ".hexdigest() == digest or there"),
    ),
    defence(
        "a record is a regular file, opened without waiting",
        "test_damaged_records.py",
        ("runner/files/record.py", "os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW", "os.O_RDONLY"),
    ),
    defence(
        "a record has a schema",
        "test_damaged_records.py",
        ("node/validate.py", 'raise Invalid(f"{name}: {error}") from error', "found[name] = item[name]"),
    ),
    defence(
        "a job's directory may be nested deeper than calls",
        "test_damaged_records.py::test_directories_nested_deeper_than_calls_hide_no_job_and_are_deleted",
        (
            "runner/verbs/listing.py",
            "        trees.remove(directory)",
            "        import shutil\n\n        shutil.rmtree(directory, ignore_errors=True)",
        ),
    ),
    defence(
        "only administrators can execute what makes root",
        "test_sudo.py",
        ("localcloud/nodes/image.py", "program.chmod(0o4750)", "program.chmod(0o4755)"),
    ),
    defence(
        "certificates of nodes are for the job user only",
        "test_sudo.py",
        ("node/trust.py", '["-n", user,', '["-n", f"{user},root,ubuntu",'),
    ),
    defence(
        "the metadata service is blocked",
        "test_metadata.py::test_no_way_leads_a_job_to_the_credentials_of_its_instance",
        _SHUT,
        _SEEMS_SHUT,
    ),
    defence(
        "the authority in the table is the head's role's to write",
        "test_metadata.py::test_a_job_on_the_head_can_not_make_itself_the_authority",
        _SHUT,
        _SEEMS_SHUT,
    ),
    defence(
        "the metadata service is blocked for sockets bound to a device",
        "test_metadata.py::test_no_way_leads_a_job_to_the_credentials_of_its_instance",
        _SEEMS_SHUT,
        (
            "node/firewall.py",
            "    echo route append broadcast 169.254.169.254 dev ${{device##*/}} scope host",
            "    echo route append broadcast 192.0.2.1 dev ${{device##*/}} scope host",
        ),
    ),
    defence(
        "the metadata service is blocked for all uids from the job user's on",
        "test_metadata.py::test_no_way_leads_a_job_to_the_credentials_of_its_instance",
        ("node/firewall.py", "last=$((first + count - 1))", "last={0}"),
    ),
    defence(
        "the metadata service is blocked over IPv6",
        "test_metadata.py::test_no_way_leads_a_job_to_the_credentials_of_its_instance",
        _SEEMS_SHUT,
        ("node/firewall.py", "ip -6 rule add", "true"),
    ),
    defence(
        "rules that were removed are restored",
        "test_metadata.py::test_rules_that_somebody_removes_come_back",
        ("node/daemon.py", "threading.Thread(target=firewall.watch, args=(settings,), daemon=True).start()", "pass"),
    ),
    defence(
        "the metadata service is blocked at each boot before sshd starts",
        "test_metadata.py::test_a_node_that_reboots_lets_nobody_in_before_the_way_is_shut",
        ("node/firewall.py", 'files.enable("phalanx-firewall", _UNIT, "sysinit", root)', "pass"),
    ),
    defence(
        "a token is needed for the credentials of jobs",
        "test_metadata.py::test_a_token_is_good_while_its_job_runs_and_no_other_is",
        ("node/credentials.py", '.get(named[1] if named else "")', '.get(named[1] if named else "", "any")'),
    ),
    defence(
        "a token ends with its job",
        "test_metadata.py::test_a_token_is_good_while_its_job_runs_and_no_other_is",
        ("node/credentials.py", "del self._jobs[starter]", "pass"),
    ),
    defence(
        "the role of jobs is empty",
        "test_metadata.py -k role",
        (
            "template/access.py",
            'return iam.Role("JobRole", AssumeRolePolicyDocument=trust(trusted), **more)',
            'sends = policy("x", [allow(["sqs:SendMessage"], "*")])\n'
            '    return iam.Role("JobRole", AssumeRolePolicyDocument=trust(trusted), Policies=[iam.Policy(**sends)])',
        ),
    ),
    defence(
        "user data is root's to read",
        "test_metadata.py::test_a_job_reads_nothing_of_the_agent_s",
        ("localcloud/nodes/init.py", "machine.user_data, 0o600", "machine.user_data, 0o644"),
    ),
    defence(
        "the command line refuses an invalid roster",
        "test_hostile_head.py::test_a_forged_roster_in_the_table_is_refused",
        _ANY_TEXT,
        _ANY_HOST_NAME,
    ),
    defence(
        "options of ssh end before the host",
        "test_hostile_head.py::test_a_command_is_never_an_option_of_ssh",
        ("ssh/remote.py", '"-t" if terminal else "-T", "--", self.host', '"-t" if terminal else "-T", self.host'),
    ),
    defence(
        "an answer of the head is parsed with suspicion",
        "test_hostile_head.py::test_an_invalid_answer_ends_no_command_by_accident",
        ("ssh/head_answers.py", "if not isinstance(found, dict):", "if False:"),
    ),
    defence(
        "a file of a stream is in a directory that came before it",
        "test_hostile_files.py::test_a_stream_that_the_head_forged_leaves_nothing_elsewhere",
        ("runner/files/arriving.py", "if member.name != TOP and not is_known:", "if False:"),
    ),
    defence(
        "a list of files names none behind a link",
        "test_hostile_files.py::test_a_list_that_the_head_forged_touches_no_file_elsewhere",
        ("runner/files/unchanged.py", 'parent not in directories or last in ("", ".", "..")', "False"),
    ),
    defence(
        "a link of a stream stays inside",
        "test_hostile_files.py::test_a_stream_that_the_head_forged_leaves_nothing_elsewhere",
        (
            "runner/files/carry.py",
            "elif _stays_inside(member.name, member.linkname) and _leads_below(target, place, member.linkname):",
            "elif member.issym():",
        ),
    ),
    defence(
        "links that lead elsewhere are left out",
        "test_hostile_files.py::test_links_that_are_copied_home_lead_nowhere_else",
        (
            "runner/files/carry.py",
            'return not link.startswith("/") and up <= directories_above and ".." not in parts[up:]',
            "return True",
        ),
        ("runner/files/carry.py", 'return (end + "/").startswith(os.path.realpath(target) + "/")', "return True"),
    ),
    defence(
        "no more is taken than was announced",
        "test_hostile_files.py::test_a_stream_that_the_head_forged_leaves_nothing_elsewhere",
        ("runner/files/arriving.py", "if self._items_left < 0 or self._bytes_left < 0:", "if False:"),
    ),
    defence(
        "a file of a stream gets no special rights",
        "test_hostile_files.py::test_a_forged_file_gets_no_rights_of_another",
        ("runner/files/carry.py", "member.mode & 0o777", "member.mode & 0o7777"),
    ),
    defence(
        "a job has a HOME of its own",
        "test_later_jobs.py::test_nothing_that_a_job_leaves_at_home_steers_a_later_one",
        ("runner/starter/scratch.py", ', "HOME": self.home', ""),
    ),
    defence(
        "requirements lead to no other file",
        "test_hostile_repository.py::test_requirements_include_no_file_of_this_machine",
        (
            "guest_file.py",
            "if leads_out(str(path), str(directory)):",
            "if False:",
        ),
        ("guest_file.py", "path.resolve().relative_to(directory.resolve()).parts", "path.parts"),
        ("jobs/requirements_file.py", "if self.mistakes:", "if False:"),
    ),
    defence(
        "git's settings are no requirements",
        "test_hostile_repository.py::test_requirements_include_neither_git_s_settings_nor_an_ignored_file_with_secrets",
        ("jobs/requirements_file.py", "if self.mistakes:", "if False:"),
    ),
    *(
        defence(name, "test_silent_files.py::test_a_file_that_does_not_answer_ends_the_command_that_sends_it", edit)
        for name, edit in (
            ("what is sent is read within a time", ("guest_file.py", "_SILENT_S = 30.0", "_SILENT_S = 3600.0")),
            (
                "what may hang for good is read by another process",
                ("guest_file.py", "if _is_served_by_a_process(at[0]):", "if False:"),
            ),
        )
    ),
    defence(
        "later jobs read no cache of an earlier one",
        "test_later_jobs.py::test_nothing_that_a_job_leaves_at_home_steers_a_later_one",
        (
            "runner/starter/starter.py",
            "node = {**network.variables(),",
            'node = {"HF_HUB_CACHE": os.path.expanduser("~/.cache/huggingface/hub"), **network.variables(),',
        ),
    ),
    defence(
        "files of a repository have an end",
        "test_hostile_repository.py::test_a_file_without_an_end_is_refused",
        ("guest_file.py", "os.open(path, os.O_RDONLY | os.O_NONBLOCK", "os.open(path, os.O_RDONLY"),
        ("guest_file.py", "_SILENT_S = 30.0", "_SILENT_S = 3600.0"),
        ("code/ignore_rules.py", "if path.is_symlink():", "if False:"),
    ),
    defence(
        "a data set has only its own files",
        "test_hostile_repository.py::test_a_data_set_takes_no_file_of_this_machine",
        ("packing/samples.py", "elif not inside.has(path):", "elif False:"),
    ),
    defence(
        "control characters are shown on a terminal",
        "test_hostile_output.py",
        ("cli/terminal.py", "shown = _ACTS.sub(lambda found: found[1] or _escape(found[0]), text)", "return text"),
    ),
    defence(
        "control characters are shown in tables",
        "test_hostile_output.py::test_names_and_reasons_that_a_job_chose_are_shown",
        (
            "cli/terminal.py",
            'return _ACTS.sub(lambda found: "" if found[1] else _escape(found[0]), text)',
            "return text",
        ),
    ),
    defence(
        "the head has no right to change its group's maximum",
        "test_money.py",
        (
            "template/access.py",
            '"autoscaling:SetDesiredCapacity"]',
            '"autoscaling:UpdateAutoScalingGroup", "autoscaling:SetDesiredCapacity"]',
        ),
    ),
    defence(
        "the group's maximum is the user's number",
        "test_money.py",
        ("template/fleet.py", 'MaxSize=Ref("Workers")', 'MaxSize="1000"'),
    ),
    defence(
        "a worker has no right to change sizes",
        "test_money.py::test_root_on_a_worker_changes_no_size_at_all",
        (
            "template/access.py",
            'allow(["sqs:SendMessage"], GetAtt("HeadQueue", "Arn")),',
            'allow(["sqs:SendMessage", "autoscaling:SetDesiredCapacity"], "*"),',
        ),
    ),
    defence(
        "a notice proves its sender",
        "test_forged_messages.py::test_a_notice_about_other_nodes_makes_none_leave",
        _ANY_SENDER,
    ),
    defence(
        "a message proves its sender",
        "test_forged_messages.py::test_another_nodes_failure_does_not_evict_it",
        _ANY_SENDER,
    ),
    defence(
        "an instance id is valid",
        "test_forged_messages.py::test_an_instance_id_writes_no_file_on_the_head",
        _ANY_SENDER,
        _ANY_TEXT,
        *_UNLISTED,
    ),
    defence(
        "Auto Scaling lists a new node, and EC2 has its address",
        "test_forged_messages.py::test_an_invented_node_is_no_member",
        _ANY_SENDER,
        _ANY_HOST_NAME,
        *_UNLISTED,
    ),
    defence(
        "a host name is valid, and the node's own",
        "test_forged_messages.py::test_a_new_nodes_first_words_are_checked_and_the_head_still_takes_it_in_and_lets_it_go",
        _ANY_TEXT,
        _ANY_HOST_NAME,
    ),
    defence(
        "a number of GPUs is valid",
        "test_forged_messages.py::test_a_new_nodes_first_words_are_checked_and_the_head_still_takes_it_in_and_lets_it_go",
        ("node/validate.py", "if type(value) is not int or not 0 <= value <= most:", "if False:"),
    ),
    defence(
        "an invalid message is deleted and stops nobody",
        "test_forged_messages.py::test_an_invalid_message_stops_nobody",
        (
            "node/head.py",
            "except Exception as error:\n            self._refuse",
            "except KeyError as error:\n            self._refuse",
        ),
    ),
)
