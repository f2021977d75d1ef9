-- inorder session/plan_once
-- Plans each prepared statement of the session once. The server would plan a statement with a limit that it does not know anew
-- at each call, which costs more than running it. A plan that was made while there were few events must do when there are many:
-- so the index is walked, and nothing is sorted. (Until version 18 that is said by a cost so high that JIT would set in.)
SET plan_cache_mode = force_generic_plan;
SET enable_sort = off;
SET jit = off;
