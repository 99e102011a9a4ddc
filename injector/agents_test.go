package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/internal/daemon"
)

func TestWhatIsSaidForAllAgentsReachesEachOfThem(t *testing.T) {
	s, err := parse([]string{"--agent-image=a:1", "--namespace=x",
		"--agent-env=HTTPS_PROXY=http://proxy.example.com:3128", "--agent-env=http_proxy=proxy:3128/", "--agent-env=NO_PROXY=example.com, .b.example,*.c.example:8443,git,10.0.0.0/8,192.0.2.1,192.0.2.1:80,fd00::/8,[fd00::1]:443,",
		"--agent-arg=--log-level=debug", "--agent-arg=--log-format=text", "--agent-arg=--max-files=7", "--agent-arg=--max-path=7", "--agent-arg=--max-depth=7", "--agent-arg=--max-blob=1GiB",
		"--agent-arg=--max-rendered=1GiB", "--agent-arg=--max-repository=1GiB", "--agent-arg=--max-lost-found=1GiB", "--agent-arg=--lost-found-age=1h"}, noEnv, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []corev1.EnvVar{
		{Name: "HTTPS_PROXY", Value: "http://proxy.example.com:3128"}, {Name: "http_proxy", Value: "proxy:3128/"},
		{Name: "NO_PROXY", Value: "example.com, .b.example,*.c.example:8443,git,10.0.0.0/8,192.0.2.1,192.0.2.1:80,fd00::/8,[fd00::1]:443,"},
	}, defaults(s).Env)
	assert.Equal(t, []string{"--log-level=debug", "--log-format=text", "--max-files=7", "--max-path=7", "--max-depth=7", "--max-blob=1GiB",
		"--max-rendered=1GiB", "--max-repository=1GiB", "--max-lost-found=1GiB", "--lost-found-age=1h"}, defaults(s).Args)
	for _, proxy := range []string{"https://proxy", "socks5://[fd00::1]:1080", "192.0.2.1:3128", "*"} {
		variable := "HTTPS_PROXY"
		if proxy == "*" {
			variable = "NO_PROXY"
		}
		_, err := parse([]string{"--agent-image=a:1", "--namespace=x", "--agent-env=" + variable + "=" + proxy}, noEnv, io.Discard)
		assert.NoError(t, err, proxy)
	}
}

// C7: every reader of pods sees what the injector adds, and the injector's command line is readable as well.
func TestWhatAgentsMustNotBeToldStopsTheInjectorWithTheReason(t *testing.T) {
	const undecided = "is no flag that can be set for all agents: the injector, the pod and its GatewaySync decide the rest. Those are --log-format, --log-level, --lost-found-age, --max-blob, " +
		"--max-depth, --max-files, --max-lost-found, --max-path, --max-rendered, --max-repository"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--agent-env=HTTPS_PROXY=http://me:S3CR3T@proxy:3128"}, "--agent-env: HTTPS_PROXY has a user or a password in it"},
		{[]string{"--agent-env=http_proxy=S3CR3T@proxy"}, "--agent-env: http_proxy has a user or a password in it"},
		{[]string{"--agent-env=HTTPS_PROXY=http://me:%S3CR3T@proxy:x"}, "has a user or a password in it"},
		{[]string{"--agent-env=HTTPS_PROXY="}, "HTTPS_PROXY is no address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy/S3CR3T"}, "is no address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy?S3CR3T"}, "is no address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy#S3CR3T"}, "is no address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://$(S3CR3T)"}, "is no address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://"}, "is no address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=" + strings.Repeat("a", maxVariable+1)}, "is no address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=ftp://proxy"}, "write http, https or socks5"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy:99999"}, "has a port that is none"},
		{[]string{"--agent-env=NO_PROXY="}, "NO_PROXY is empty"},
		{[]string{"--agent-env=NO_PROXY=a," + strings.Repeat("b", maxVariable)}, "longer than 4096 bytes"},
		{[]string{"--agent-env=NO_PROXY=a,https://S3CR3T"}, "NO_PROXY has an entry that would match nothing, number 2"},
		{[]string{"--agent-env=no_proxy=10.*"}, "no_proxy has an entry that would match nothing, number 1"},
		{[]string{"--agent-env=NO_PROXY=a b"}, "match nothing"},
		{[]string{"--agent-env=NO_PROXY=a/b"}, "match nothing"},
		{[]string{"--agent-env=NO_PROXY=me:S3CR3T@host"}, "match nothing"},
		{[]string{"--agent-env=NO_PROXY=a", "--agent-env=no_proxy=b"}, "--agent-env: NO_PROXY is given twice"},
		{[]string{"--agent-env=NO_PROXY"}, "--agent-env: write NAME=VALUE"},
		{[]string{"--agent-env=No_Proxy=a"}, `--agent-env: "No_Proxy" is none of the variables that agents may be given: HTTPS_PROXY, HTTP_PROXY, NO_PROXY, or the same in lower case`},
		{[]string{"--agent-env=GIT_TOKEN_FILE=S3CR3T"}, `"GIT_TOKEN_FILE" is none of the variables`},
		{[]string{"--agent-env=LD_PRELOAD=S3CR3T"}, `"LD_PRELOAD" is none of the variables`},

		{[]string{"--agent-arg=--data-dir=/"}, "--agent-arg: --data-dir " + undecided},
		{[]string{"--agent-arg=--kubeconfig=/x"}, "--agent-arg: --kubeconfig " + undecided},
		{[]string{"--agent-arg=--health-addr=:1"}, "--health-addr is no flag"},
		{[]string{"--agent-arg=--allow-unseeded=true"}, "--allow-unseeded is no flag"},
		{[]string{"--agent-arg=--file=x"}, "--file is no flag"},
		{[]string{"--agent-arg=--version=true"}, "--version is no flag"},
		{[]string{"--agent-arg=--=x"}, "-- is no flag"},
		{[]string{"--agent-arg=-log-level=debug"}, `--agent-arg: write --flag=value in place of "-log-level"`},
		{[]string{"--agent-arg=--log-level"}, `--agent-arg: write --flag=value in place of "--log-level"`},
		{[]string{"--agent-arg=--log-level=loud"}, `--agent-arg: --log-level: "loud" is none of`},
		{[]string{"--agent-arg=--log-format=xml"}, `--agent-arg: --log-format: "xml" is none of`},
		{[]string{"--agent-arg=--max-files=0"}, "--agent-arg: --max-files must be more than 0"},
		{[]string{"--agent-arg=--max-files=many"}, "--agent-arg: --max-files=many: parse error"},
		{[]string{"--agent-arg=--max-blob=5MB"}, `--agent-arg: --max-blob=5MB: "5MB" is not a size such as 512MiB`},
		{[]string{"--agent-arg=--max-files=1", "--agent-arg=--max-files=2"}, "--agent-arg: --max-files is given twice"},
	} {
		var out bytes.Buffer
		_, err := parse(append(c.args, "--agent-image=a:1", "--namespace=x"), noEnv, &out)
		require.ErrorIs(t, err, daemon.ErrUsage, "%q", c.args)
		said, _, _ := strings.Cut(out.String(), "\nSee injector --help")
		assert.Contains(t, said, c.want, "%q", c.args)
		assert.NotContains(t, said, "\n", "one thing is wrong, and it is said once")
		assert.NotContains(t, out.String(), "S3CR3T", "%q", c.args)
	}
}
