package lostfound

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEntryNames(t *testing.T) {
	const file = "20261120T063000.000Z-0123456/projects/p/caf\ufffd"
	for name, l := range map[string]Entry{
		"raw name of another path":    {Path: "projects/p/caf\ufffd", RawPath: []byte("config/secret\xe9"), File: file},
		"raw name beside a valid one": {Path: "projects/p/other", RawPath: []byte("projects/p/caf\xe9"), File: file},
		"file of another path":        {Path: "projects/p/other\ufffd", RawPath: []byte("projects/p/other\xe9"), File: file},
		"no raw name":                 {Path: "projects/p/caf\ufffd", File: file},
		"only a raw name":             {RawPath: []byte("/")},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, l, l.exact()) })
	}
	saved := Entry{Path: "projects/p/caf\ufffd", RawPath: []byte("projects/p/caf\xe9"), File: file + ".1"}
	assert.Equal(t, "20261120T063000.000Z-0123456/projects/p/caf\xe9.1", saved.exact().File, "the second file of that name")
}
