# Sourced: lets uv fetch from where this machine's pip is set to fetch. uv reads UV_* and uv.toml, but not pip's settings.
# Whoever has set uv up is left alone, and no index is named here.

pip_setting() {  # NAME: from PIP_NAME, else from pip's files; empty when unset
    local variable="PIP_${1^^}"
    variable="${variable//-/_}"
    if [ -n "${!variable:-}" ]; then
        echo "${!variable}"
    else
        .tools/bin/pip config get "global.$1" 2>/dev/null || .tools/bin/pip config get "install.$1" 2>/dev/null || true
    fi
}

follow_pip() {
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        UV_DEFAULT_INDEX="$(pip_setting index-url)"
        if [ -n "$UV_DEFAULT_INDEX" ]; then export UV_DEFAULT_INDEX; else unset UV_DEFAULT_INDEX; fi
    fi
    if [ -z "${SSL_CERT_FILE:-}" ]; then
        SSL_CERT_FILE="$(pip_setting cert)"
        if [ -n "$SSL_CERT_FILE" ]; then export SSL_CERT_FILE; else unset SSL_CERT_FILE; fi
    fi
}
