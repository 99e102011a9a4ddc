package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/internal/daemon"
)

func TestAgentEnvAndArgsReachAgents(t *testing.T) {
	s, err := parse([]string{"--agent-image=a:1", "--namespace=x",
		"--agent-env=HTTPS_PROXY=http://proxy.example.com:3128", "--agent-env=http_proxy=proxy:3128/", "--agent-env=NO_PROXY=example.com, .b.example,*.c.example:8443,git,10.0.0.0/8,192.0.2.1,192.0.2.1:80,fd00::/8,[fd00::1]:443,",
		"--agent-arg=--log-level=debug", "--agent-arg=--log-format=text", "--agent-arg=--max-files=7", "--agent-arg=--max-blob=1GiB",
		"--agent-arg=--max-repository=1GiB", "--agent-arg=--max-lost-found=1GiB", "--agent-arg=--lost-found-age=1h"}, noEnv, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []corev1.EnvVar{
		{Name: "HTTPS_PROXY", Value: "http://proxy.example.com:3128"}, {Name: "http_proxy", Value: "proxy:3128/"},
		{Name: "NO_PROXY", Value: "example.com, .b.example,*.c.example:8443,git,10.0.0.0/8,192.0.2.1,192.0.2.1:80,fd00::/8,[fd00::1]:443,"},
	}, defaults(s).Env)
	assert.Equal(t, []string{"--log-level=debug", "--log-format=text", "--max-files=7", "--max-blob=1GiB",
		"--max-repository=1GiB", "--max-lost-found=1GiB", "--lost-found-age=1h"}, defaults(s).Args)
	for _, proxy := range []string{"https://proxy", "socks5://[fd00::1]:1080", "192.0.2.1:3128", "*"} {
		t.Run(proxy, func(t *testing.T) {
			variable := "HTTPS_PROXY"
			if proxy == "*" {
				variable = "NO_PROXY"
			}
			_, err := parse([]string{"--agent-image=a:1", "--namespace=x", "--agent-env=" + variable + "=" + proxy}, noEnv, io.Discard)
			assert.NoError(t, err)
		})
	}
}

// C7: every reader of pods sees what the injector adds, and the injector's command line is readable as well.
func TestAgentEnvAndArgsErrors(t *testing.T) {
	const undecided = "cannot be set for all agents; the allowed flags are --log-format, --log-level, --lost-found-age, --max-blob, " +
		"--max-files, --max-lost-found, --max-repository"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--agent-env=HTTPS_PROXY=http://me:S3CR3T@proxy:3128"}, "--agent-env: HTTPS_PROXY contains a user or a password"},
		{[]string{"--agent-env=http_proxy=S3CR3T@proxy"}, "--agent-env: http_proxy contains a user or a password"},
		{[]string{"--agent-env=HTTPS_PROXY=http://me:%S3CR3T@proxy:x"}, "contains a user or a password"},
		{[]string{"--agent-env=HTTPS_PROXY="}, "HTTPS_PROXY is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy/S3CR3T"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy?S3CR3T"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy#S3CR3T"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://$(S3CR3T)"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=" + strings.Repeat("a", maxVariable+1)}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=ftp://proxy"}, "use http, https, socks5 or socks5h"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy:99999"}, "has an invalid port"},
		{[]string{"--agent-env=NO_PROXY="}, "NO_PROXY is empty"},
		{[]string{"--agent-env=NO_PROXY=a," + strings.Repeat("b", maxVariable)}, "longer than 4096 bytes"},
		{[]string{"--agent-env=NO_PROXY=a,https://S3CR3T"}, "NO_PROXY has an invalid entry, number 2"},
		{[]string{"--agent-env=no_proxy=10.*"}, "no_proxy has an invalid entry, number 1"},
		{[]string{"--agent-env=NO_PROXY=a b"}, "has an invalid entry"},
		{[]string{"--agent-env=NO_PROXY=a/b"}, "has an invalid entry"},
		{[]string{"--agent-env=NO_PROXY=me:S3CR3T@host"}, "has an invalid entry"},
		{[]string{"--agent-env=NO_PROXY=a", "--agent-env=no_proxy=b"}, "--agent-env: NO_PROXY is set twice"},
		{[]string{"--agent-env=NO_PROXY"}, "--agent-env: write NAME=VALUE"},
		{[]string{"--agent-env=No_Proxy=a"}, `--agent-env: "No_Proxy" is not allowed: set HTTPS_PROXY, HTTP_PROXY, NO_PROXY, or the same in lower case`},
		{[]string{"--agent-env=GIT_TOKEN_FILE=S3CR3T"}, `"GIT_TOKEN_FILE" is not allowed`},
		{[]string{"--agent-env=LD_PRELOAD=S3CR3T"}, `"LD_PRELOAD" is not allowed`},

		{[]string{"--agent-arg=--data-dir=/"}, "--agent-arg: --data-dir " + undecided},
		{[]string{"--agent-arg=--kubeconfig=/x"}, "--agent-arg: --kubeconfig " + undecided},
		{[]string{"--agent-arg=--health-addr=:1"}, "--health-addr cannot be set"},
		{[]string{"--agent-arg=--allow-unseeded=true"}, "--allow-unseeded cannot be set"},
		{[]string{"--agent-arg=--file=x"}, "--file cannot be set"},
		{[]string{"--agent-arg=--version=true"}, "--version cannot be set"},
		{[]string{"--agent-arg=--=x"}, "-- cannot be set"},
		{[]string{"--agent-arg=-log-level=debug"}, `--agent-arg: "-log-level" is not of the form --flag=value`},
		{[]string{"--agent-arg=--log-level"}, `--agent-arg: "--log-level" is not of the form --flag=value`},
		{[]string{"--agent-arg=--log-level=loud"}, `--agent-arg: --log-level: "loud" is not one of`},
		{[]string{"--agent-arg=--log-format=xml"}, `--agent-arg: --log-format: "xml" is not one of`},
		{[]string{"--agent-arg=--max-files=0"}, "--agent-arg: --max-files must be positive"},
		{[]string{"--agent-arg=--max-files=many"}, "--agent-arg: --max-files=many: parse error"},
		{[]string{"--agent-arg=--max-blob=5MB"}, `--agent-arg: --max-blob=5MB: "5MB" is not a size such as 512MiB`},
		{[]string{"--agent-arg=--max-files=1", "--agent-arg=--max-files=2"}, "--agent-arg: --max-files is set twice"},
	} {
		t.Run(fmt.Sprintf("%.60s", c.args), func(t *testing.T) {
			var out bytes.Buffer
			_, err := parse(append(c.args, "--agent-image=a:1", "--namespace=x"), noEnv, &out)
			require.ErrorIs(t, err, daemon.ErrUsage)
			problem, _, _ := strings.Cut(out.String(), "\nSee injector --help")
			assert.Contains(t, problem, c.want)
			assert.NotContains(t, problem, "\n", "one problem, one line")
			assert.NotContains(t, out.String(), "S3CR3T")
		})
	}
}
