package check

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCompareVersions(t *testing.T) {
	for name, c := range map[string]struct {
		parts []Part
		want  []string // problems
	}{
		"one version":                 {[]Part{{Name: "stoker", Version: "0.3.0"}, {Name: "injector", Version: "0.3.0"}}, []string{"", ""}},
		"patches":                     {[]Part{{Name: "stoker", Version: "0.3.9"}, {Name: "injector", Version: "0.3.0"}}, []string{"", ""}},
		"one minor apart":             {[]Part{{Name: "stoker", Version: "0.4.0"}, {Name: "injector", Version: "0.3.0"}}, []string{"", ""}},
		"two minors apart":            {[]Part{{Name: "stoker", Version: "0.5.0"}, {Name: "injector", Version: "0.3.0"}}, []string{"", "too old beside 0.5.0: upgrade it"}},
		"an old command line":         {[]Part{{Name: "stoker", Version: "0.1.0"}, {Name: "injector", Version: "0.3.0"}}, []string{"too old beside 0.3.0: upgrade it", ""}},
		"agents of last year":         {[]Part{{Name: "injector", Version: "0.6.0"}, {Name: agents, Version: "0.2.0"}}, []string{"", ""}},
		"agents of earlier":           {[]Part{{Name: "injector", Version: "0.7.0"}, {Name: agents, Version: "0.2.0"}}, []string{"", "too old beside 0.7.0: restart their pods"}},
		"agents newer than the rest":  {[]Part{{Name: "injector", Version: "0.1.0"}, {Name: agents, Version: "0.3.0"}}, []string{"", "newer than 0.1.0: upgrade the release, or restart their pods"}},
		"a pod that reports anything": {[]Part{{Name: "injector", Version: "0.1.0"}, {Name: "receiver", Version: "0.1.0"}, {Name: agents, Version: "999.0.0"}}, []string{"", "", "newer than 0.1.0: upgrade the release, or restart their pods"}},
		"only agents":                 {[]Part{{Name: "stoker", Version: "dev"}, {Name: agents, Version: "0.1.0"}}, []string{`unknown: "dev" is not the version of a release`, ""}},
		"another major":               {[]Part{{Name: "injector", Version: "1.0.0"}, {Name: agents, Version: "0.9.0"}}, []string{"", "too old beside 1.0.0: restart their pods"}},
		"a pre-release":               {[]Part{{Name: "injector", Version: "0.3.0-rc.1"}, {Name: agents, Version: "0.2.0"}}, []string{"", ""}},
		"a build of a checkout":       {[]Part{{Name: "stoker", Version: "dev"}, {Name: agents, Version: ""}}, []string{`unknown: "dev" is not the version of a release`, `unknown: "none" is not the version of a release`}},
		"an unreadable part":          {[]Part{{Name: "injector", Problem: "unknown: forbidden"}}, []string{"unknown: forbidden"}},
	} {
		t.Run(name, func(t *testing.T) {
			Compare(c.parts)
			for i, want := range c.want { // sequence: parts of one installation
				assert.Equal(t, want, c.parts[i].Problem)
			}
		})
	}
}
