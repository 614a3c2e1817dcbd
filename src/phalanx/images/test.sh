fail() {
    echo "phalanx: $*" >&2
    exit 1
}

export PATH="$environment/bin:/opt/amazon/openmpi/bin:$PATH"
# Open MPI 4 and 5: two ranks even on one core, started by root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

echo "== what nodes need"
for name in "${programs[@]}"; do
    command -v "$name" >/dev/null || fail "$name is missing"
done
/usr/bin/python3 -c 'import ensurepip' || fail "python3 can't make environments"
[ -x /sbin/mount.nfs4 ] || [ -x /usr/sbin/mount.nfs4 ] || fail "the client of NFS is missing"

echo "== imports"
"${check[@]}"

echo "== two processes: ${trial[*]}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
write_program >"${trial[-1]}"
timeout 600 "${trial[@]}"

if [ -n "$cuda" ]; then
    echo "== CUDA"
    ompi_info --parsable --all | grep 'mpi_built_with_cuda_support:value:true' || fail "Open MPI was built without CUDA"
fi
echo "== passed"
