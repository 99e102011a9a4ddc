package bound

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errFull = errors.New("full")

func full() error { return errFull }

func TestWriter(t *testing.T) {
	var out strings.Builder
	w := NewWriter(&out, 5, full)
	n, err := w.Write([]byte("abc"))
	require.NoError(t, err)
	assert.Equal(t, 3, n)
	assert.EqualValues(t, 2, w.Left())
	n, err = w.Write([]byte("def"))
	assert.Equal(t, []any{0, errFull}, []any{n, err}, "a part of a write is not written")
	_, err = w.Write([]byte("d"))
	assert.Equal(t, errFull, err, "the error stays")
	assert.Equal(t, errFull, w.Err())
	assert.Equal(t, "abc", out.String())

	broken := errors.New("broken")
	w = NewWriter(writerFunc(func([]byte) (int, error) { return 1, broken }), 5, full)
	_, err = w.Write([]byte("abc"))
	assert.Equal(t, broken, err)
	assert.EqualValues(t, 4, w.Left())
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// io.Copy uses the method ReadFrom of its destination, which would read everything into memory.
func TestCopy(t *testing.T) {
	b := NewBuffer(10, full)
	_, err := io.Copy(b, struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 100))})
	assert.ErrorIs(t, err, errFull)
	assert.Empty(t, b.Bytes())
	for _, w := range []any{b, b.Writer, NewHead(1)} {
		_, ok := w.(io.ReaderFrom)
		assert.False(t, ok, "%T", w)
	}
	b = NewBuffer(100, full)
	_, err = io.Copy(b, strings.NewReader("short"))
	require.NoError(t, err)
	assert.Equal(t, "short", string(b.Bytes()))
}

func TestHead(t *testing.T) {
	h := NewHead(4)
	for _, text := range []string{"ab", "cde", "f"} { // sequence: what was written before counts
		n, err := io.WriteString(h, text)
		require.NoError(t, err)
		assert.Len(t, text, n)
	}
	assert.Equal(t, "abcd", h.String())
}

func TestReadAll(t *testing.T) {
	for name, c := range map[string]struct {
		r     io.Reader
		want  string
		err   error
		large bool
	}{
		"less":                {strings.NewReader("123"), "123", nil, false},
		"the limit":           {strings.NewReader("1234"), "1234", nil, false},
		"more":                {strings.NewReader("12345"), "1234", ErrTooLarge, true},
		"an error":            {io.MultiReader(strings.NewReader("12"), iotest.ErrReader(errFull)), "12", errFull, false},
		"more, then an error": {io.MultiReader(strings.NewReader("12345"), iotest.ErrReader(errFull)), "1234", ErrTooLarge, true},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := ReadAll(c.r, 4)
			assert.Equal(t, c.want, string(b))
			assert.ErrorIs(t, err, c.err)
			assert.Equal(t, c.large, errors.Is(err, ErrTooLarge))
		})
	}
}
