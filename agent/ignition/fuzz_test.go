package ignition

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"stoker.io/stoker/internal/secret"
)

// answers returns the same response to every request.
type answers struct {
	status   int
	location string
	body     []byte
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: a.status,
		Header:     http.Header{"Location": {a.location}, "Date": {a.location}},
		Body:       io.NopCloser(bytes.NewReader(a.body)),
		Request:    r,
	}, nil
}

// FuzzResponse checks that for any response, the methods that everything calls return without a panic. Errors must be one line of
// limited length without the token.
func FuzzResponse(f *testing.F) {
	for _, seed := range []struct {
		status         int
		location, body string
	}{
		{200, "", `{"state":"RUNNING","details":"COMMISSIONING"}`},
		{200, "", `{"scanActive":true,"lastScanTimestamp":1795157689246,"lastScanDuration":12}`},
		{200, "", `{"scanActive":false,"lastScanTimestamp":-1}`},
		{200, "", `{"items":[{"name":"a","modes":["core"],"lastcomm":"2026-01-01T00:00:00Z"}],"metadata":{"total":2,"matching":2}}`},
		{200, "", `{"items":[{"timestamp":99999999999999999999,"level":"ERROR","message":"\u001b[0m"}]}`},
		{200, "", `{"pending":[null,{},[],1e999]}`},
		{200, "", `{"name":null,"ignitionVersion":"8.3.6 (b2026042713)","deploymentMode":{}}`},
		{200, "", "ContextStatus=RUNNING;Version=8.1.44;;="},
		{200, "", `{"supported":true,"gatewayProjectScanSuccess":true,"sentDesignerUpdateNotification":true}`},
		{200, "", `{"supported":true,"gatewayProjectScanSuccess":"no"}`},
		{200, "", `{"role":"Backup","hasConfigAccess":false,"peerConnected":true,"activityLevel":"Warm\n"}`},
		{204, "", ""},
		{302, "/welcome", ""},
		{302, "https://elsewhere/n:S3CR3T", ""},
		{302, "://", ""},
		{401, "", "<title>Error 401 Unauthorized</title><th>MESSAGE:</th><td>Unauthorized</td>"},
		{403, "", `{"message":"n:S3CR3T\n","url":"/x","status":"403"}`},
		{404, "", `{"message":"No route match for path: /v1/x","url":"/x","status":"404"}`},
		{408, "", ""},
		{409, "", "<th>MESSAGE:</th><td><b>n:S3CR3T</td>"},
		{422, "", `{"messages":[1,"two"],"fieldMessages":[]}`},
		{500, "", "\xff\xfe<th>MESSAGE:</th><td>\xe4</td>"},
		{503, "", strings.Repeat("<td>", 1000)},
	} {
		f.Add(seed.status, seed.location, []byte(seed.body))
	}
	f.Fuzz(func(t *testing.T, status int, location string, body []byte) {
		synctest.Test(t, func(t *testing.T) {
			c, err := New(Config{
				URL: "http://gateway.example:8088",
				Key: func() (secret.String, error) { return secret.New("n:S3CR3T"), nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			c.http.Transport = answers{status, location, body}
			began := time.Now()
			for name, err := range everything(t, c) {
				checkError(t, name, err)
			}
			if took := time.Since(began); took > time.Hour {
				t.Errorf("all calls together took %s", took)
			}
		})
	})
}

// everything calls most methods of a Client, and returns their errors by name.
func everything(t *testing.T, c *Client) map[string]error {
	ctx := t.Context()
	_, ping := c.Ping(ctx)
	_, info := c.Info(ctx)
	_, redundancy := c.Redundancy(ctx)
	_, projects := c.Projects(ctx)
	_, project := c.Project(ctx, "p")
	_, names := c.ResourceNames(ctx, "m", "t")
	_, logs := c.ErrorsSince(ctx, time.Now())
	_, designers := c.Designers(ctx)
	_, modules := c.Modules(ctx)
	backup := c.Backup(ctx, io.Discard)
	_, pending := c.PendingRestarts(ctx)
	_, trial := c.TrialExpired(ctx)
	lock := c.Lock(ctx, Projects, time.Minute)
	_, _, holder := c.LockHolder(ctx, Projects)
	_, scan := c.Scan(ctx, Projects)
	_, platform := c.Platform(ctx)
	_, module := c.ScanByModule(ctx, true)
	return map[string]error{
		"ping": ping, "info": info, "redundancy": redundancy, "projects": projects, "project": project, "names": names, "logs": logs,
		"designers": designers, "modules": modules, "backup": backup, "pending": pending, "trial": trial, "lock": lock, "holder": holder, "scan": scan,
		"platform": platform, "module": module,
	}
}

// checkError checks the text of an error of the method with this name.
func checkError(t *testing.T, name string, err error) {
	if err == nil {
		return
	}
	text := err.Error()
	switch {
	case !utf8.ValidString(text):
		t.Errorf("%s: the error is not UTF-8: %q", name, text)
	case strings.ContainsAny(text, "\n\r\x1b\x00"):
		t.Errorf("%s: the error has more than one line: %q", name, text)
	case len(text) > 4000:
		t.Errorf("%s: the error has %d bytes", name, len(text))
	case name != "ping" && name != "platform" && strings.Contains(text, "n:S3CR3T"): // the status page gets no token
		t.Errorf("%s: the error holds the token: %q", name, text)
	}
}

// FuzzNodeRole checks that parsing any redundancy.xml ends, and that the role is one short line.
func FuzzNodeRole(f *testing.F) {
	const head = `<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<!DOCTYPE properties SYSTEM "http://java.sun.com/dtd/properties.dtd">
`
	f.Add([]byte(head + `<properties><entry key="redundancy.noderole">Backup</entry></properties>`))
	f.Add([]byte(head + `<properties><comment>x</comment><entry key="a"><b/></entry><entry key="redundancy.noderole"> master </entry></properties>`))
	f.Add([]byte(`<?xml version="1.0" encoding="UTF-16"?><properties/>`))
	f.Add([]byte(`<!DOCTYPE p [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><properties><entry key="redundancy.noderole">&b;</entry></properties>`))
	f.Add([]byte(`<entry key="redundancy.noderole">`))
	f.Add([]byte("PK\x03\x04"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := NodeRole(raw)
		if err == nil && (got == "" && len(raw) == 0 || strings.ContainsAny(got, "\n\r\x1b\x00") || utf8.RuneCountInString(got) > 40) {
			t.Errorf("the role is %q", got)
		}
	})
}
