package prometheus

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRealFleet breaks a real fleet in every way, and evaluates alerts and panels on what was scraped meanwhile. What a fleet of a test
// cannot do is changed in the samples: time passes between scrapes, a gateway is held for hours, lost+found has another limit, an agent
// another version; a receiver panics, and a repair is stopped.
func TestRealFleet(t *testing.T) {
	f := newFleet(t)
	all := f.incidents()
	now := time.Now()
	t.Run("alerts", func(t *testing.T) { testAlerts(t, now, all) })
	t.Run("panels", func(t *testing.T) { testPanels(t, now, all) })
}

func testAlerts(t *testing.T, now time.Time, all []incident) {
	tested := map[string]bool{"StokerCertificateExpires": true}
	for _, i := range all {
		t.Run(i.name, func(t *testing.T) {
			l := newTimeline(t, now)
			lasts, settles := i.lasts, i.settles
			if lasts == 0 {
				lasts = 2 * time.Hour
			}
			if settles == 0 {
				settles = 30 * time.Minute
			}
			fired := l.passes(stage{scrape: i.before, lasts: time.Hour})
			if !slices.Contains(i.alerts, "StokerGatewayScanFailing") { // the first failure is a part of it
				assert.Empty(t, fired, "before")
			}
			assert.ElementsMatch(t, i.alerts, names(l.passes(stage{scrape: i.broken, lasts: lasts, every: i.every, again: i.again, was: i.before})))
			l.passes(stage{scrape: i.fixed, lasts: settles})
			l.passes(stage{scrape: i.fixed, lasts: time.Minute})
			assert.Empty(t, l.firing(), "no alert may fire after the fix")
		})
		for _, alert := range i.alerts {
			tested[alert] = true
		}
	}
	t.Run("a certificate expires", func(t *testing.T) {
		healthy := all[len(all)-1].fixed
		l := newTimeline(t, now.Add(70*24*time.Hour)) // it is valid for 90 days
		assert.Empty(t, l.passes(stage{scrape: healthy, lasts: time.Hour}))
		l.now = now.Add(77 * 24 * time.Hour)
		assert.Equal(t, []string{"StokerCertificateExpires"}, names(l.passes(stage{scrape: healthy, lasts: time.Hour})))
		renewed := healthy.with(t, "stoker_certificate_expiry_timestamp_seconds", func(s *sample) {
			if s.value > 0 {
				s.value += 60 * 24 * 3600
			}
		})
		l.passes(stage{scrape: renewed, lasts: time.Hour})
		assert.Empty(t, l.firing())
	})
	for _, r := range newTimeline(t, now).alerts() {
		assert.True(t, tested[r.Name()], "no incident fires %s", r.Name())
	}
}

func names(fired map[string]int) (found []string) {
	for name := range fired {
		found = append(found, name)
	}
	slices.Sort(found)
	return found
}

// Every alert is described in the documentation, at the address that it names.
func TestAlertsAreDocumented(t *testing.T) {
	page := string(readFile(t, docs+"how-to/monitoring.md"))
	const base = "https://github.com/stoker-io/stoker/blob/main/docs/how-to/monitoring.md#"
	alerts := newTimeline(t, time.Now()).alerts()
	require.Len(t, alerts, 18)
	for _, r := range alerts {
		t.Run(r.Name(), func(t *testing.T) {
			assert.Equal(t, base+strings.ToLower(r.Name()), r.Annotations().Get("runbook_url"))
			assert.Contains(t, page, "\n### "+r.Name()+"\n")
			assert.NotEmpty(t, r.Annotations().Get("summary"))
			assert.NotEmpty(t, r.Annotations().Get("description"))
			assert.Contains(t, []string{"info", "warning", "critical"}, r.Labels().Get("severity"))
		})
	}
}
