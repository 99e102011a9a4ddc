package kube

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// dated is a slow API server whose clock is ahead of this node's.
type dated struct {
	ahead, takes time.Duration
	date         string // overrides the Date header
}

func (d *dated) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(d.takes / 2)
	date := d.date
	if date == "" {
		date = time.Now().Add(d.ahead).UTC().Format(http.TimeFormat)
	}
	time.Sleep(d.takes - d.takes/2)
	return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Date": {date}}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
}

func TestServerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &dated{}
		clients, err := ConnectTo(&rest.Config{Host: "http://server.invalid", Transport: server}, "test")
		require.NoError(t, err)
		ask := func() {
			_, err := clients.Core.CoreV1().Pods("plant").Get(t.Context(), "x", metav1.GetOptions{})
			require.Error(t, err)
			_, err = SyncTargets(clients.Dynamic, "plant").Get(t.Context(), "x")
			require.Error(t, err)
		}
		assert.Equal(t, time.Now(), clients.Now(), "before the first answer, the local clock counts")
		// sequence: each answer changes the clock of the next, and a synctest bubble has no sub-tests
		for _, ahead := range []time.Duration{0, 20 * time.Minute, -20 * time.Minute, 10 * 365 * 24 * time.Hour, 300 * time.Millisecond, 0} {
			server.ahead = ahead
			for range 20 { // at different fractions of a second
				server.takes = 37 * time.Millisecond
				ask()
				time.Sleep(361 * time.Millisecond)
				assert.WithinDuration(t, time.Now().Add(ahead), clients.Now(), time.Second+server.takes, "%s", ahead)
			}
		}
		assert.Equal(t, time.Now(), clients.Now(), "a small difference is not corrected")

		server.ahead = time.Hour
		// sequence: each answer could change the clock of the next, and a synctest bubble has no sub-tests
		for _, c := range []struct {
			takes time.Duration
			date  string
		}{{maxRoundTrip + time.Millisecond, ""}, {0, "soon"}, {0, " "}} {
			server.takes, server.date = c.takes, c.date
			ask()
			assert.Equal(t, time.Now(), clients.Now(), "an answer of %+v must not set the clock", c)
		}
	})
	assert.WithinDuration(t, time.Now(), Clients{}.Now(), time.Minute, "the zero value uses the local clock")
}
