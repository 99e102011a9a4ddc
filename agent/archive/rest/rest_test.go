package rest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestBlocks(t *testing.T) {
	for length := range 14 {
		t.Run(strconv.Itoa(length), func(t *testing.T) {
			text := strings.Repeat("abcdefg", 2)[:length]
			for name, r := range map[string]io.Reader{
				"whole":         strings.NewReader(text),
				"byte by byte":  iotest.OneByteReader(strings.NewReader(text)),
				"data with EOF": iotest.DataErrReader(strings.NewReader(text)),
			} {
				t.Run(name, func(t *testing.T) {
					var got bytes.Buffer
					ends, blocks := 0, 0
					require.NoError(t, Blocks(r, 4, func(block []byte, last bool) error {
						assert.Zero(t, ends, "no block follows the last one")
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
				})
			}
		})
	}
	for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF} { // io.ReadFull returns the second at the end of a reader
		t.Run("source that fails: "+broken.Error(), func(t *testing.T) {
			err := Blocks(io.MultiReader(strings.NewReader("abcdef"), iotest.ErrReader(broken)), 4, func(_ []byte, last bool) error {
				assert.False(t, last)
				return nil
			})
			require.ErrorIs(t, err, broken)
		})
	}
	t.Run("server that fails", func(t *testing.T) {
		broken, calls := errors.New("broken"), 0
		require.ErrorIs(t, Blocks(strings.NewReader("abcdefghij"), 4, func([]byte, bool) error {
			calls++
			return broken
		}), broken)
		assert.Equal(t, 1, calls)
	})
}

func TestListLimits(t *testing.T) {
	for name, c := range map[string]struct {
		page []string
		want string
	}{
		"too many objects": {slices.Repeat([]string{"p/a"}, 1000), "there are more than 10000 objects below p/"},
		"empty pages":      {nil, "the listing below p/ has more than 10000 pages"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := List("p/", func(string) ([]string, string, error) { return c.page, "again", nil })
			require.EqualError(t, err, c.want)
			assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded))
		})
	}
}

// A proxy must not see the token of a pod's identity, which a cloud serves without TLS.
func TestMetadataHTTPHasNoProxy(t *testing.T) {
	for client, proxied := range map[*http.Client]bool{MetadataHTTP(): false, TokenHTTP(): true} {
		transport, ok := client.Transport.(*http.Transport)
		require.True(t, ok)
		assert.Equal(t, proxied, transport.Proxy != nil)
	}
}
