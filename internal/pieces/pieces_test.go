package pieces

import (
	"bytes"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBytes(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	want := make([]byte, 3*Size+5)
	_, _ = random.Read(want) // never fails
	for _, step := range []int{1000, Size, Size + 1, len(want)} {
		t.Run(strconv.Itoa(step), func(t *testing.T) {
			var buffer Buffer
			for part := range slices.Chunk(want, step) {
				n, err := buffer.Write(part)
				require.NoError(t, err)
				assert.Len(t, part, n)
			}
			p := buffer.Bytes
			assert.Len(t, p, 4)
			assert.EqualValues(t, len(want), p.Len())
			assert.True(t, bytes.Equal(want, p.Join()))
			for range 2 { // a reader does not consume the Bytes
				got, err := io.ReadAll(p.Reader())
				require.NoError(t, err)
				assert.True(t, bytes.Equal(want, got))
			}
			var out bytes.Buffer
			n, err := p.WriteTo(&out)
			require.NoError(t, err)
			assert.EqualValues(t, len(want), n)
			assert.True(t, bytes.Equal(want, out.Bytes()))
		})
	}
	small := []byte("x")
	assert.Same(t, &small[0], &Of(small).Join()[0], "one piece is not copied")
	assert.Empty(t, Bytes(nil).Join())
}

func TestReuse(t *testing.T) {
	var b Buffer
	old := make([]byte, Size)
	b.Reuse(old)
	b.Reuse([]byte("too small"))
	_, _ = b.Write(make([]byte, 2*Size)) // never fails
	require.Len(t, b.Bytes, 2)
	assert.Same(t, &old[0], &b.Bytes[0][0])
	assert.EqualValues(t, 2*Size, b.Bytes.Len())
}
