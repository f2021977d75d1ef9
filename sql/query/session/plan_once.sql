-- inorder session/plan_once
-- Plans each prepared statement of the session once. The server would plan a statement with a limit that it does not know anew
-- at each call, which costs more than running it.
SET plan_cache_mode = force_generic_plan
