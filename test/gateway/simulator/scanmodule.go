package simulator

import (
	"net/http"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// scanModule is the third-party project-scan module. Before 8.3 its routes need no token.
type scanModule struct {
	opts      *Options
	auth      *authorizer
	scans     *Scans
	designers *Designers
}

func (m *scanModule) guard(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !m.opts.ScanModule:
			noRoute(w, r)
		case m.opts.before83():
			next(w, r)
		default:
			if _, refused := m.auth.authorizeFor(r, false); refused != nil {
				htmlError(w, refused.status, refused.message)
				return
			}
			next(w, r)
		}
	}
}

func (m *scanModule) getSupport(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ordered.Object{{"supported", true}})
}

func (m *scanModule) post(w http.ResponseWriter, r *http.Request) {
	err := m.scans.Run(kindProjects)
	notify := r.URL.Query().Get("updateDesigners") == "true"
	if notify {
		m.designers.notify()
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"gatewayProjectScanSuccess", err == nil}, {"sentDesignerUpdateNotification", notify}})
}
