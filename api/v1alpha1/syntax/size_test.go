package syntax

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSnapshotSizes(t *testing.T) {
	for size, want := range map[string]int64{"1": 1, "2Ki": 2048, "1Gi": 1 << 30, "0": 0, "-1": 0, "1Ti": 0, "1e9": 0, "": 0} {
		t.Run("size "+size, func(t *testing.T) { assert.Equal(t, want, SnapshotSize(size)) })
	}
	for bytes, want := range map[int64]string{0: "0", 1023: "1023", 1024: "1Ki", 1500: "1.5Ki", 1 << 20: "1Mi", 5 << 40: "5120Gi"} {
		t.Run("text of "+want, func(t *testing.T) { assert.Equal(t, want, SizeText(bytes)) })
	}
}
