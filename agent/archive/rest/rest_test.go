package rest

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestBlocks(t *testing.T) {
	for length := range 14 {
		t.Run(strconv.Itoa(length), func(t *testing.T) {
			text := strings.Repeat("abcdefg", 2)[:length]
			for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} { // sequence: the same for each
				var got bytes.Buffer
				ends, blocks := 0, 0
				require.NoError(t, Blocks(r, 4, func(block []byte, last bool) error {
					assert.Zero(t, ends, "nothing follows the end")
					if blocks++; last {
						ends++
					} else {
						assert.Len(t, block, 4)
					}
					got.Write(block)
					return nil
				}))
				assert.Equal(t, 1, ends)
				assert.Equal(t, max(1, (length+3)/4), blocks)
				assert.Equal(t, text, got.String())
			}
		})
	}
	t.Run("source that fails", func(t *testing.T) {
		for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF} { // sequence: io.ReadFull takes the second for an end
			err := Blocks(io.MultiReader(strings.NewReader("abcdef"), iotest.ErrReader(broken)), 4, func(_ []byte, last bool) error {
				assert.False(t, last)
				return nil
			})
			require.ErrorIs(t, err, broken)
		}
	})
	t.Run("server that fails", func(t *testing.T) {
		broken, calls := errors.New("broken"), 0
		require.ErrorIs(t, Blocks(strings.NewReader("abcdefghij"), 4, func([]byte, bool) error {
			calls++
			return broken
		}), broken)
		assert.Equal(t, 1, calls)
	})
}
