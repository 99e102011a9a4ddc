package forge

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/giturl"
)

// A token for another host must not go to dev.azure.com.
func TestAzureAddress(t *testing.T) {
	for repository, c := range map[string]struct{ base, api, project string }{
		"https://dev.azure.com/o/p/_git/r":                           {"", "https://dev.azure.com/o", "p"},
		"https://dev.azure.com/o/_git/r":                             {"", "https://dev.azure.com/o", "r"},
		"git@ssh.dev.azure.com:v3/o/p/r":                             {"", "https://dev.azure.com/o", "p"},
		"https://o.visualstudio.com/p/_git/r":                        {"", "https://dev.azure.com/o", "p"},
		"https://o.visualstudio.com/_git/r":                          {"", "https://dev.azure.com/o", "r"},
		"https://o.visualstudio.com/DefaultCollection/p/_git/r":      {"", "https://dev.azure.com/o", "p"},
		"https://o.visualstudio.com/DefaultCollection/_git/r":        {"", "https://dev.azure.com/o", "r"},
		"o@vs-ssh.visualstudio.com:v3/o/p/r":                         {"", "https://dev.azure.com/o", "p"},
		"https://tfs.example.com/o/p/_git/r":                         {},
		"https://tfs.example.com/o/p/_git/r#base":                    {"https://tfs.example.com/o", "https://tfs.example.com/o", "p"},
		"https://dev.azure.com.example.com/o/p/_git/r":               {},
		"https://dev.azure.com/_git/r":                               {},
		"https://o.visualstudio.com/AnotherCollection/p/_git/r":      {},
		"https://o.visualstudio.com/AnotherCollection/p/_git/r/more": {},
	} {
		t.Run(repository, func(t *testing.T) {
			at, err := locate(giturl.AzureDevOps, repository, c.base)
			if c.api == "" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, []string{c.api, "o", c.project, "r"}, []string{at.api.String(), at.owner, at.project, at.name})
		})
	}
}
